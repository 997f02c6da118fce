"""The launchers: the commands that they give, in a dry run and to programs that stand in for gcloud, sbatch and srun."""

import itertools
import json
import math
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time

import pytest
import yaml

from jaxdistill import cli

from conftest import ROOT

RECORDS = """#!/usr/bin/env python3
import json, os, pathlib, sys, tarfile, time
name, given, folder = pathlib.Path(sys.argv[0]).name, sys.argv[1:], pathlib.Path(os.environ["RECORDS"])
with (folder / "commands").open("a") as file:
    file.write(json.dumps([name, *given]) + "\\n")
if "describe" in given:
    print((folder / "state").read_text().strip())
if "create" in given:
    (folder / "state").write_text("READY")
if given and given[-2:] and any(word.endswith(":results.tar.gz") for word in given):
    fetched = next(word for word in given if word.endswith("/"))
    tarfile.open(fetched + "results.tar.gz", "w:gz").add(folder / "state", "results.json")
if name == "srun" or "jaxdistill.main" in " ".join(given):
    ends = (folder / "ends").read_text().split()
    (folder / "ends").write_text(" ".join(ends[1:]))
    if ends and ends[0] != "0":
        (folder / "state").write_text("PREEMPTED")
        sys.exit(int(ends[0]))
"""
TPU = ["--name=mine", "--zone=us-west4-a"]
TRAINING = ["--config=configs/congen.py:minilm-l3", "--config.data.text=my texts/*.gz", "--workdir=/data/l3"]


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A folder with stand-ins in PATH, which note their arguments: `state` of the TPU, `ends`: statuses of trainings."""
    (tmp_path / "bin").mkdir()
    for name in ("gcloud", "git", "sbatch", "srun", "scontrol"):
        (tmp_path / "bin" / name).write_text(RECORDS.replace("/usr/bin/env python3", sys.executable))
        (tmp_path / "bin" / name).chmod(0o755)
    (tmp_path / "state").write_text("")
    (tmp_path / "ends").write_text("")
    for name in [name for name in os.environ if name.startswith("SLURM_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setenv("RECORDS", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def launched(script, *arguments, status=0):
    """What a script prints."""
    command = [str(ROOT / "launch" / script), *map(str, arguments)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert ended.returncode == status, ended.stderr
    return ended.stdout if status == 0 else ended.stderr


def recorded(machine):
    path = machine / "commands"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def verbs(commands):
    """Those of gcloud on TPUs, such as `create`."""
    return [command[4] for command in commands if command[0] == "gcloud"]


@pytest.mark.parametrize(
    "script, options", [("tpu_vm.sh", []), ("tpu_pod.sh", ["--type=v5litepod-64", "--before=mount /data"])]
)
def test_a_tpu_is_created_installed_and_trained_on_and_its_results_fetched(machine, script, options):
    launched(script, *TPU, *options, "--spot", f"--out={machine / 'out'}", "--", *TRAINING)
    commands = recorded(machine)
    before = ["ssh"] * ("--before=mount /data" in options)
    assert verbs(commands) == ["describe", "create", "scp", "ssh", *before, "ssh", "ssh", "scp"]
    assert all(
        "--zone=us-west4-a" in command and "mine" in " ".join(command) for command in commands if command[0] == "gcloud"
    )
    kind = options[0] if options else "--type=v5litepod-8"
    created = next(command for command in commands if "create" in command)
    assert {kind.replace("--type", "--accelerator-type"), "--version=v2-alpha-tpuv5-lite", "--spot"} <= set(created)
    on_all = [
        word for command in commands if "--worker=all" in command for word in command if word.startswith("--command=")
    ]
    assert "pip install --quiet -r requirements-tpu.txt" in on_all[0] and len(on_all) == 2 + len(before)
    assert shlex.split(on_all[-1].removeprefix("--command="))[-4:] == ["jaxdistill.main", *TRAINING]
    assert (machine / "out" / "results.json").is_file()


@pytest.mark.parametrize("script", ["tpu_vm.sh", "tpu_pod.sh"])
def test_a_workdir_in_a_bucket_outlives_a_preempted_tpu_and_stays_there(machine, script):
    (machine / "ends").write_text("255 0")
    training = [*TRAINING[:-1], "--workdir=gs://mine/runs/l3"]
    launched(script, *TPU, "--type=v6e-8", "--retries=1", f"--out={machine / 'out'}", "--", *training)
    commands = recorded(machine)
    assert sum("uv pip install --quiet gcsfs" in " ".join(command) for command in commands) == 2
    assert verbs(commands).count("create") == 2 and not (machine / "out").exists()


@pytest.mark.parametrize(
    "state, expected",
    [("READY", []), ("STOPPED", ["start"]), ("PREEMPTED", ["delete", "create"])],
)
def test_a_tpu_that_exists_is_used(machine, state, expected):
    (machine / "state").write_text(state)
    launched("tpu_vm.sh", *TPU, f"--out={machine / 'out'}", "--", *TRAINING)
    assert verbs(recorded(machine)) == ["describe", *expected, "scp", "ssh", "ssh", "ssh", "scp"]


def test_a_preempted_slice_is_created_again_and_the_training_continued(machine):
    (machine / "ends").write_text("255 75 0")
    given = [*TPU, "--type=v6e-64", "--retries=2", f"--out={machine / 'out'}", "--", *TRAINING]
    launched("tpu_pod.sh", *given)
    commands = recorded(machine)
    trained = [word for command in commands for word in command if "jaxdistill.main" in word]
    assert len(trained) == 3 and len(set(trained)) == 1
    assert verbs(commands).count("create") == 3 and verbs(commands).count("delete") == 2
    (machine / "ends").write_text("255 255 255")
    assert "the same command continues it" in launched("tpu_pod.sh", *given, status=2)


def test_a_training_that_fails_on_a_tpu_is_not_repeated(machine):
    (machine / "bin" / "gcloud").write_text((machine / "bin" / "gcloud").read_text().replace('"PREEMPTED"', '"READY"'))
    (machine / "ends").write_text("2")
    given = [*TPU, "--retries=5", "--", *TRAINING]
    assert "ended with status 2, see above" in launched("tpu_vm.sh", *given, status=2)
    assert "create" in verbs(recorded(machine)) and verbs(recorded(machine)).count("ssh") == 2


@pytest.mark.parametrize("flag", ["--dry_run", "DRY_RUN=1"])
def test_a_dry_run_prints_the_commands_of_a_run_and_gives_none(machine, monkeypatch, flag):
    given = ["--type=v6e-64", f"--out={machine / 'out'}", "--", *TRAINING]
    with monkeypatch.context() as patched:
        if flag == "DRY_RUN=1":
            patched.setenv("DRY_RUN", "1")
        printed = launched("tpu_pod.sh", *TPU, *([flag] if flag == "--dry_run" else []), *given)
    assert not recorded(machine) and not (machine / "out").exists()
    launched("tpu_pod.sh", *TPU, *given)
    shown = [shlex.split(line) for line in printed.splitlines()]
    assert [command for command in shown if command[0] in ("gcloud", "git")] == recorded(machine)
    assert {command[0] for command in shown} == {"gcloud", "git", "mkdir", "tar"}


@pytest.mark.parametrize(
    "script, arguments, words",
    [
        ("tpu_vm.sh", ["--zone=a", "--", *TRAINING], "--name is missing"),
        ("tpu_vm.sh", ["--name=a", "--", *TRAINING], "--zone is missing"),
        ("tpu_vm.sh", TPU, "no --workdir; give its arguments after --"),
        ("tpu_vm.sh", [*TPU, "--config=a"], "unknown option --config=a"),
        ("tpu_vm.sh", [*TPU, "--type=v9-8", "--", *TRAINING], "--version is missing"),
        ("tpu_vm.sh", [*TPU, "--retries=some", "--", *TRAINING], "--retries=some is not a number"),
        ("tpu_pod.sh", [*TPU, "--", *TRAINING], "--type is missing"),
        ("tpu_pod.sh", [*TPU, "--type=v6e-64", "--", "--workdir=runs/l3"], "no folder that all workers see"),
        ("slurm.sh", ["--nodes=2"], "the training has no arguments"),
        ("slurm.sh", ["--nodes=0", "--", *TRAINING], "--nodes=0 must be a number of at least 1"),
        ("slurm.sh", ["--per=core", "--", *TRAINING], "allowed: node, gpu"),
        ("slurm.sh", ["--per=gpu", "--", *TRAINING], "--per=gpu needs --gpus=N"),
        ("local_processes.sh", ["python"], "the number of processes is missing"),
        ("local_processes.sh", ["2"], "the command is missing"),
    ],
)  # fmt: skip
def test_what_is_missing_is_said_in_one_line(machine, script, arguments, words):
    said = launched(script, *arguments, status=2)
    assert said.startswith("error: ") and words in said and said.count("\n") == 1 and not recorded(machine)


@pytest.mark.parametrize("script, program, given", [("tpu_vm.sh", "gcloud", TPU), ("slurm.sh", "sbatch", [])])
def test_a_missing_program_is_named(machine, monkeypatch, script, program, given):
    bare = machine / "bare"
    bare.mkdir()
    for name in ("bash", "env", "realpath", "dirname", "git"):
        (bare / name).symlink_to(shutil.which(name))
    monkeypatch.setenv("PATH", str(bare))
    said = launched(script, *given, "--", *TRAINING, status=2)
    assert said.startswith(f"error: {program} is not installed; ") and said.count("\n") == 1


@pytest.mark.parametrize("script", ["tpu_vm.sh", "tpu_pod.sh", "slurm.sh", "local_processes.sh"])
def test_every_launcher_has_a_usage(machine, script):
    assert f"launch/{script}" in launched(script, "--help") and not recorded(machine)


@pytest.mark.parametrize("per, tasks", [("node", 1), ("gpu", 8)])
def test_slurm_gets_a_task_for_each_node_or_gpu(machine, per, tasks):
    given = ["--nodes=2", "--gpus=8", f"--per={per}", "--time=01:00:00", "--", *TRAINING]
    (printed,) = launched("slurm.sh", "--dry_run", *given).splitlines()
    launched("slurm.sh", *given)
    (command,) = recorded(machine)
    assert command == shlex.split(printed)
    assert {"--nodes=2", f"--ntasks-per-node={tasks}", "--gpus-per-node=8", "--time=01:00:00"} <= set(command)
    assert command[-4:] == ["launch/slurm.sh", *TRAINING]
    directives = re.findall("^#SBATCH (.*)", (ROOT / "launch" / "slurm.sh").read_text(), flags=re.M)
    assert {"--signal=TERM@120", "--requeue"} <= set(directives)


@pytest.mark.parametrize("status", [0, 2, cli.AGAIN])
def test_a_slurm_job_goes_back_into_the_queue_after_a_save_alone(machine, monkeypatch, status):
    monkeypatch.setenv("SLURM_JOB_ID", "17")
    (machine / "ends").write_text(str(status))
    launched("slurm.sh", *TRAINING, status=status if status != cli.AGAIN else 0)
    first, *others = recorded(machine)
    assert first == ["srun", "python3", "-m", "jaxdistill.main", *TRAINING]
    assert others == ([["scontrol", "requeue", "17"]] if status == cli.AGAIN else [])


def test_local_processes_know_their_places_and_the_worst_status_is_kept(tmp_path):
    says = 'echo $JAX_PROCESS_ID of $JAX_NUM_PROCESSES, $CUDA_VISIBLE_DEVICES > "$0/$JAX_PROCESS_ID"; echo $JAX_COORDINATOR_ADDRESS; exit $JAX_PROCESS_ID'
    command = [str(ROOT / "launch" / "local_processes.sh"), "--gpus", "3", "sh", "-c", says, str(tmp_path)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 2 and ended.stderr == ""
    addresses = ended.stdout.split()
    assert len(addresses) == 3 and len(set(addresses)) == 1 and re.fullmatch(r"127\.0\.0\.1:\d+", addresses[0])
    assert [(tmp_path / str(index)).read_text() for index in range(3)] == [f"{i} of 3, {i}\n" for i in range(3)]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_all_local_processes(tmp_path, number):
    waits = "import os, pathlib, signal, sys, time\nfor number in (2, 15): signal.signal(number, lambda n, _: sys.exit(70 + n))\n"
    waits += "pathlib.Path(sys.argv[1], os.environ['JAX_PROCESS_ID']).touch()\ntime.sleep(50)"
    command = [str(ROOT / "launch" / "local_processes.sh"), "2", sys.executable, "-c", waits, str(tmp_path)]
    process = subprocess.Popen(command)
    begun = time.monotonic()
    while len(list(tmp_path.iterdir())) < 2 and time.monotonic() - begun < 60:
        time.sleep(0.05)
    process.send_signal(number)
    assert process.wait(timeout=60) == 70 + number


def loaded(name):
    return yaml.safe_load((ROOT / "launch" / name).read_text())


def test_the_jobset_has_a_pod_for_each_host_of_the_slice_and_restarts_what_can_go_on():
    jobs = loaded("gke_jobset.yaml")
    assert (jobs["apiVersion"], jobs["kind"]) == ("jobset.x-k8s.io/v1alpha2", "JobSet")
    ((job,), failures) = jobs["spec"]["replicatedJobs"], jobs["spec"]["failurePolicy"]
    spec = job["template"]["spec"]
    pod = spec["template"]["spec"]
    (container,) = pod["containers"]
    chips = math.prod(map(int, pod["nodeSelector"]["cloud.google.com/gke-tpu-topology"].split("x")))
    assert spec["parallelism"] == spec["completions"] == chips // container["resources"]["limits"]["google.com/tpu"]
    assert spec["completionMode"] == "Indexed" and spec["backoffLimit"] == 0 and pod["restartPolicy"] == "Never"
    assert failures["maxRestarts"] > 0
    (refusal,) = (rule["onExitCodes"] for rule in spec["podFailurePolicy"]["rules"])
    assert refusal["containerName"] == container["name"] and refusal["values"] == [cli.BAD_INPUT]
    mounted = [mount["mountPath"] for mount in container["volumeMounts"]]
    assert container["args"][0] == "train" and f"--workdir={mounted[0]}/runs/l3" in container["args"]
    assert [volume["name"] for volume in pod["volumes"]] == [mount["name"] for mount in container["volumeMounts"]]


def test_the_sky_task_joins_its_nodes_and_goes_on_after_a_preemption(tmp_path):
    task = loaded("sky.yaml")
    assert task["resources"]["use_spot"] and task["resources"]["job_recovery"]["recover_on_exit_codes"] == [cli.AGAIN]
    assert task["envs"]["WORKDIR"].startswith(next(iter(task["file_mounts"])))
    python = tmp_path / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text('#!/bin/sh\necho $JAX_COORDINATOR_ADDRESS $JAX_NUM_PROCESSES $JAX_PROCESS_ID "$@"\n')
    python.chmod(0o755)
    nodes = {"SKYPILOT_NODE_IPS": "10.0.0.1\n10.0.0.2", "SKYPILOT_NUM_NODES": "2", "SKYPILOT_NODE_RANK": "1"}
    started = subprocess.run(
        ["bash", "-c", task["run"]],
        cwd=tmp_path,
        env=os.environ | task["envs"] | nodes,
        capture_output=True,
        text=True,
        check=True,
    )
    expected = ["10.0.0.1:8476", "2", "1", "-m", "jaxdistill.main", *task["envs"]["ARGUMENTS"].split()]
    assert started.stdout.split() == [*expected, f"--workdir={task['envs']['WORKDIR']}"]


@pytest.mark.parametrize("name", ["sky.yaml", "gke_jobset.yaml"])
def test_the_configs_of_the_launchers_exist(name):
    path, preset = re.findall(r"--config=(configs/\w+\.py):([\w-]+)", (ROOT / "launch" / name).read_text())[-1]
    assert f'"{preset}"' in (ROOT / path).read_text()


def instructions(path):
    """(instruction, words) of a Dockerfile."""
    text = re.sub(r"\\\n", " ", path.read_text())
    return [tuple(line.split(maxsplit=1)) for line in text.splitlines() if line and not line.startswith("#")]


def test_the_container_takes_what_exists_and_ends_as_a_plain_user():
    steps = instructions(ROOT / "launch" / "Dockerfile")
    copied = [rest.split()[:-1] for word, rest in steps if word == "COPY" and "--from" not in rest]
    sources = set(itertools.chain.from_iterable(copied))
    assert all((ROOT / source).exists() for source in sources)
    sent = (ROOT / "launch" / "Dockerfile.dockerignore").read_text().splitlines()
    assert {line[1:] for line in sent if line.startswith("!")} == sources
    assert [rest for word, rest in steps if word == "USER"][-1] not in ("root", "0")
    assert steps[-2] == ("ENTRYPOINT", '["jaxdistill"]')

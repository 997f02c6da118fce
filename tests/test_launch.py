"""The launchers: the commands that they give, in a dry run and to programs that stand in for gcloud, sbatch and srun."""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tarfile
import time

import pytest

from jaxdistill import cli

from conftest import ROOT

RECORDS = """#!/usr/bin/env python3
import json, os, pathlib, sys, tarfile
name, given, folder = pathlib.Path(sys.argv[0]).name, sys.argv[1:], pathlib.Path(os.environ["RECORDS"])
state = folder / "state"

def next_of(queue):
    words = (folder / queue).read_text().split()
    (folder / queue).write_text(" ".join(words[1:]))
    return words[0] if words else ""

with (folder / "commands").open("a") as file:
    file.write(json.dumps([name, *given]) + "\\n")
if "describe" in given:
    print(state.read_text().strip())
if name == "sleep":
    state.write_text(next_of("states") or state.read_text())
if any(word.endswith(":results.tar.gz") for word in given):
    fetched = next(word for word in given if word.endswith("/"))
    tarfile.open(fetched + "results.tar.gz", "w:gz").add(state, "results.json")
status = 0
if "create" in given or {"scp", "--worker=all"} <= set(given):
    status = int(next_of("failures") or 0)
if "create" in given and status == 0:
    state.write_text("READY")
if name == "srun" or "jaxdistill.main" in " ".join(given):
    status = int(next_of("ends") or 0)
    state.write_text((folder / "left").read_text() if status else state.read_text())
sys.exit(status)
"""
TPU = ["--name=mine", "--zone=us-west4-a"]
TRAINING = ["--config=configs/congen.py:minilm-l3", "--config.data.text=my texts/*.gz", "--workdir=/data/l3"]


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A folder with stand-ins in PATH, which note their arguments in `commands`.

    Other files: `state` of the TPU; `left`, its state after a training that failed; `states`, those after each pause; `ends`,
    the statuses of trainings; `failures`, the statuses of creations and uploads, in their order.
    """
    (tmp_path / "bin").mkdir()
    for name in ("gcloud", "git", "sbatch", "srun", "scontrol", "sleep"):
        (tmp_path / "bin" / name).write_text(RECORDS.replace("/usr/bin/env python3", sys.executable))
        (tmp_path / "bin" / name).chmod(0o755)
    for name, content in {"state": "", "left": "PREEMPTED", "states": "", "ends": "", "failures": ""}.items():
        (tmp_path / name).write_text(content)
    launchers = (
        "SLURM_",
        "OMPI_",
        "PMI_",
        "JAX_COORDINATOR",
        "JAX_NUM_PROC",
        "JAX_PROCESS",
        "TPU_",
        "MEGASCALE_",
        "KUBERNETES_",
    )
    for name in [name for name in os.environ if name.startswith(launchers)]:
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
    assert on_all[0].endswith("pip install --quiet -e '.[tpu]'") and len(on_all) == 2 + len(before)
    assert shlex.split(on_all[-1].removeprefix("--command="))[-4:] == ["jaxdistill.main", *TRAINING]
    assert (machine / "out" / "results.json").is_file()


@pytest.mark.parametrize("script, scheme", [("tpu_vm.sh", "s3"), ("tpu_pod.sh", "gs")])
def test_a_workdir_in_a_bucket_outlives_a_preempted_tpu_and_stays_there(machine, script, scheme):
    (machine / "ends").write_text("255 0")
    training = [*TRAINING[:-1], f"--workdir={scheme}://mine/runs/l3"]
    launched(script, *TPU, "--type=v6e-8", "--retries=1", f"--out={machine / 'out'}", "--", *training)
    commands = recorded(machine)
    assert sum("uv pip install --quiet -e '.[tpu,storage]'" in " ".join(command) for command in commands) == 2
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


@pytest.mark.parametrize("status", [1, 2])
def test_a_training_that_fails_on_a_tpu_is_not_repeated(machine, status):
    (machine / "left").write_text("READY")
    (machine / "ends").write_text(str(status))
    given = [*TPU, "--retries=5", "--", *TRAINING]
    assert f"ended with status {status}, see above" in launched("tpu_vm.sh", *given, status=2)
    assert "create" in verbs(recorded(machine)) and verbs(recorded(machine)).count("ssh") == 2


@pytest.mark.parametrize("status", [1, 75, 255])
def test_a_tpu_whose_state_changes_late_is_created_again(machine, status):
    (machine / "left").write_text("READY")
    (machine / "states").write_text("PREEMPTED")
    (machine / "ends").write_text(f"{status} 0")
    launched("tpu_vm.sh", *TPU, "--retries=1", f"--out={machine / 'out'}", "--", *TRAINING)
    commands = recorded(machine)
    assert ["sleep", "60"] in commands and verbs(commands).count("delete") == 1
    assert verbs(commands).count("create") == 2 and (machine / "out" / "results.json").is_file()


def test_an_installation_on_a_tpu_that_is_going_counts_as_a_try(machine):
    (machine / "left").write_text("READY")
    (machine / "states").write_text("READY PREEMPTED")
    (machine / "ends").write_text(f"{cli.AGAIN} 0")
    (machine / "failures").write_text("0 0 255")  # created, uploaded; the second upload fails
    given = ["--", *TRAINING]
    launched("tpu_vm.sh", *TPU, "--retries=2", f"--out={machine / 'out'}", *given)
    assert verbs(recorded(machine)).count("create") == 2 and recorded(machine).count(["sleep", "60"]) == 2
    (machine / "state").write_text("")
    (machine / "ends").write_text(str(cli.AGAIN))
    (machine / "failures").write_text("0 0 255")
    said = launched("tpu_vm.sh", *TPU, "--retries=1", *given, status=2)
    assert "error: the installation ended with status 255, see above; the same command continues it." in said


def test_a_creation_that_fails_and_a_tpu_that_is_still_being_created_are_looked_at_again(machine):
    (machine / "failures").write_text("1 0")
    (machine / "states").write_text("CREATING READY")
    launched("tpu_pod.sh", *TPU, "--type=v6e-64", "--retries=2", f"--out={machine / 'out'}", "--", *TRAINING)
    assert verbs(recorded(machine))[:4] == ["describe", "create", "describe", "describe"]
    (machine / "failures").write_text("1")
    (machine / "state").write_text("CREATING")
    said = launched("tpu_pod.sh", *TPU, "--type=v6e-64", "--", *TRAINING, status=2)
    assert "mine is CREATING, neither ready nor stopped" in said and "the creation ended with status 1" in said


def test_a_training_that_outlives_its_connection_is_ended_before_the_next_try(machine):
    (machine / "left").write_text("READY")
    (machine / "ends").write_text("255 0")
    launched("tpu_vm.sh", *TPU, "--retries=1", f"--out={machine / 'out'}", "--", *TRAINING)
    commands = [word.removeprefix("--command=") for command in recorded(machine) for word in command]
    assert verbs(recorded(machine)).count("create") == 1
    (ends_it,) = {command for command in commands if "kill" in command}
    trains = next(command for command in commands if "jaxdistill.main" in command)
    assert commands.index(trains) < commands.index(ends_it) < commands.index(trains, commands.index(trains) + 1)
    home = {**os.environ, "PATH": os.defpath}
    assert subprocess.run(["bash", "-c", ends_it], env=home, timeout=60).returncode == 0  # a fresh machine
    python = machine / "jaxdistill" / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text("#!/bin/bash\ntrap 'exit 75' TERM\ntouch started\nwhile true; do sleep 0.05; done\n")
    python.chmod(0o755)
    training = subprocess.Popen(["bash", "-c", trains], env=home)
    waits_for(lambda: (machine / "jaxdistill" / "started").exists())
    ending = subprocess.Popen(["bash", "-c", ends_it], env=home)
    assert training.wait(timeout=60) == cli.AGAIN and ending.wait(timeout=60) == 0


@pytest.mark.parametrize(
    "given", [["--workdir=~/runs/my l3"], ["--workdir", "~/runs/my l3"], ["-workdir=~/runs/my l3"]]
)
def test_results_come_from_a_workdir_in_the_home_folder_of_the_worker(machine, given):
    launched("tpu_vm.sh", *TPU, f"--out={machine / 'out'}", "--", TRAINING[0], *given)
    (packs,) = (word for command in recorded(machine) for word in command if "tar czf" in word)
    home = machine / "home"
    (home / "jaxdistill").mkdir(parents=True)
    (home / "runs" / "my l3" / "checkpoints").mkdir(parents=True)
    (home / "runs" / "my l3" / "results.json").touch()
    packing = ["bash", "-c", f"cd && {packs.removeprefix('--command=')}"]
    subprocess.run(packing, env={**os.environ, "HOME": str(home)}, check=True)
    with tarfile.open(home / "results.tar.gz") as results:
        assert results.getnames() == [".", "./results.json"]


@pytest.mark.parametrize(
    "script, flag", [("tpu_pod.sh", "--dry_run"), ("tpu_pod.sh", "DRY_RUN=1"), ("tpu_vm.sh", "--dry_run")]
)
def test_a_dry_run_prints_the_commands_of_a_run_and_gives_none(machine, monkeypatch, script, flag):
    given = ["--type=v6e-64", f"--out={machine / 'out'}", "--", *TRAINING]
    with monkeypatch.context() as patched:
        if flag == "DRY_RUN=1":
            patched.setenv("DRY_RUN", "1")
        printed = launched(script, *TPU, *([flag] if flag == "--dry_run" else []), *given)
    assert not recorded(machine) and not (machine / "out").exists()
    launched(script, *TPU, *given)
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
        ("slurm.sh", ["--restarts=some", "--", *TRAINING], "--restarts=some must be a number"),
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
    assert command[-5:] == ["launch/slurm.sh", "--job_with_restarts=100", *TRAINING]
    directives = re.findall("^#SBATCH (.*)", (ROOT / "launch" / "slurm.sh").read_text(), flags=re.M)
    assert {"--signal=TERM@120", "--requeue"} <= set(directives)


def slurm_job(machine, *options):
    """The command that SLURM runs after the script has given itself to sbatch: a copy of the script, elsewhere."""
    launched("slurm.sh", *options, "--", *TRAINING)
    command = recorded(machine)[-1]
    (machine / "commands").unlink()
    copy = shutil.copy(ROOT / "launch" / "slurm.sh", machine / "slurm_script")
    return [str(copy), *command[command.index("launch/slurm.sh") + 1 :]]


@pytest.mark.parametrize(
    "status, restarts, goes_back",
    [(0, "", False), (2, "", False), (137, "", False), (cli.AGAIN, "", True), (143, "", True), (cli.AGAIN, "4", True),
     (cli.AGAIN, "5", False), (143, "5", False)],
)  # fmt: skip
def test_a_slurm_job_goes_back_into_the_queue_where_it_can_continue(machine, monkeypatch, status, restarts, goes_back):
    job = slurm_job(machine, "--restarts=5")
    monkeypatch.setenv("SLURM_JOB_ID", "17")
    if restarts:
        monkeypatch.setenv("SLURM_RESTART_COUNT", restarts)
    (machine / "ends").write_text(str(status))
    ended = subprocess.run(job, capture_output=True, text=True, timeout=60)
    assert ended.returncode == (0 if goes_back else status)
    first, *others = recorded(machine)
    assert first == ["srun", "python3", "-m", "jaxdistill.main", *TRAINING]
    assert others == ([["scontrol", "requeue", "17"]] if goes_back else [])
    assert ("--restarts=5 allows no further start" in ended.stderr) == (restarts == "5")


def test_a_job_is_submitted_from_inside_an_allocation_too(machine, monkeypatch):
    monkeypatch.setenv("SLURM_JOB_ID", "16")  # salloc
    launched("slurm.sh", "--nodes=2", "--", *TRAINING)
    ((program, *given),) = recorded(machine)
    assert program == "sbatch" and "--nodes=2" in given


def test_local_processes_know_their_places_and_the_worst_status_is_kept(tmp_path):
    says = 'echo $JAX_PROCESS_ID of $JAX_NUM_PROCESSES, $CUDA_VISIBLE_DEVICES > "$0/$JAX_PROCESS_ID"; echo $JAX_COORDINATOR_ADDRESS; exit $JAX_PROCESS_ID'
    command = [str(ROOT / "launch" / "local_processes.sh"), "--gpus", "3", "sh", "-c", says, str(tmp_path)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 2 and ended.stderr == ""
    addresses = ended.stdout.split()
    assert len(addresses) == 3 and len(set(addresses)) == 1 and re.fullmatch(r"127\.0\.0\.1:\d+", addresses[0])
    assert [(tmp_path / str(index)).read_text() for index in range(3)] == [f"{i} of 3, {i}\n" for i in range(3)]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_all_local_processes(tmp_path, number):
    waits = "import os, pathlib, signal, sys, time\nfor number in (1, 2, 15): signal.signal(number, lambda n, _: sys.exit(70 + n))\n"
    waits += "pathlib.Path(sys.argv[1], os.environ['JAX_PROCESS_ID']).touch()\ntime.sleep(50)"
    command = [str(ROOT / "launch" / "local_processes.sh"), "2", sys.executable, "-c", waits, str(tmp_path)]
    process = subprocess.Popen(["env", "--default-signal=HUP", *command])  # nohup would hide it from the script
    waits_for(lambda: len(list(tmp_path.iterdir())) == 2)
    process.send_signal(number)
    assert process.wait(timeout=60) == 70 + number


def test_a_dry_run_of_local_processes_prints_their_commands_and_starts_none(tmp_path):
    touches = ["touch", str(tmp_path / "started here")]
    printed = launched("local_processes.sh", "--dry_run", "--gpus", "--port=7000", 2, *touches)
    joined = ["env", "JAX_COORDINATOR_ADDRESS=127.0.0.1:7000", "JAX_NUM_PROCESSES=2"]
    expected = [[*joined, f"JAX_PROCESS_ID={i}", f"CUDA_VISIBLE_DEVICES={i}", *touches] for i in range(2)]
    assert [shlex.split(line) for line in printed.splitlines()] == expected and not list(tmp_path.iterdir())


def waits_for(happens):
    begun = time.monotonic()
    while not happens() and time.monotonic() - begun < 60:
        time.sleep(0.05)

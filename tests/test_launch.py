"""The launchers: the commands that they give, in a dry run and to programs that stand in for sky, sbatch and srun."""

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

from jaxdistill.core import runtime

from conftest import ROOT

RECORDS = """#!/usr/bin/env python3
import json, os, pathlib, sys
name, given, folder = pathlib.Path(sys.argv[0]).name, sys.argv[1:], pathlib.Path(os.environ["RECORDS"])
if given[:1] == ["-c"]:  # whether Python has jaxdistill
    sys.exit(0)
with (folder / "commands").open("a") as file:
    file.write(json.dumps([name, *given]) + "\\n")
if name == "srun":
    sys.exit(int((folder / "status").read_text()))
"""
TRAINING = ["--config=configs/congen.py:minilm-l3", "--config.data.text=my texts/*.gz", "--workdir=/data/l3"]
IN_BUCKET = [TRAINING[0], "--config.data.text=gs://mine/my texts/*.gz", "--workdir=gs://mine/runs/l3"]


SINCE_BASH_4 = r"mapfile|readarray|(declare|local) -[An]|coproc|wait -n|&>>|\|&|\$\{\w+(,|\^|@)|\[-\d"


@pytest.mark.parametrize("path", sorted((ROOT / "launch").glob("*.sh")), ids=lambda path: path.name)
def test_a_script_keeps_to_the_bash_3_2_of_macos(path):
    code = path.read_text()
    assert not re.search(SINCE_BASH_4, code)
    may_be_empty = set(re.findall(r"\b(\w+)=\(\)", code))
    unguarded = set(re.findall(r'(?<!\+)"\$\{(\w+)\[@\]\}"', code))
    assert not may_be_empty & unguarded, 'under `set -u`, it fails on an empty array: ${a[@]+"${a[@]}"}'


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A folder with stand-ins in PATH, which note their arguments in `commands`; `status` is a training's exit status."""
    (tmp_path / "bin").mkdir()
    for name in ("sky", "sbatch", "srun", "scontrol", "python"):
        (tmp_path / "bin" / name).write_text(RECORDS.replace("/usr/bin/env python3", sys.executable))
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
    """What a script prints."""
    command = [str(ROOT / "launch" / script), *map(str, arguments)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert ended.returncode == status, ended.stderr
    return ended.stdout if status == 0 else ended.stderr


def recorded(machine):
    path = machine / "commands"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


CHECKED = ["python", "-m", "jaxdistill.main"]


@pytest.mark.parametrize(
    "gpus, extra, options",
    [("tpu-v5litepod-8", "tpu", []), ("tpu-v6e-64", "tpu", ["--infra=gcp"]), ("A100:8", "cuda", ["--num-nodes=2"])],
)
def test_a_training_is_checked_and_submitted_to_skypilot(machine, gpus, extra, options):
    given = [f"--gpus={gpus}", *options, "--", *IN_BUCKET]
    (printed,) = launched("sky.sh", "--dry_run", *given).splitlines()
    launched("sky.sh", *given)
    checked, again, submitted = recorded(machine)
    assert checked == again == [*CHECKED, "--check=elsewhere", *IN_BUCKET]
    assert submitted == shlex.split(printed)
    assert submitted[:5] == ["sky", "jobs", "launch", "launch/sky.yaml", f"--gpus={gpus}"]
    assert submitted[5:-1] == [*options, "--env", f"EXTRA={extra}", "--env"]
    assert shlex.split(submitted[-1].removeprefix("ARGUMENTS=")) == IN_BUCKET


@pytest.mark.parametrize(
    "script, arguments, words",
    [
        ("sky.sh", ["--", *IN_BUCKET], "--gpus is missing"),
        ("sky.sh", ["--gpus", "A100:8", "--", *IN_BUCKET], "A100:8 is no option; give values as --OPTION=VALUE"),
        ("sky.sh", ["--gpus=A100:8"], "the training has no arguments"),
        ("sky.sh", ["--gpus=tpu-v6e-8", "--num-nodes=2", "--", *IN_BUCKET], "a TPU slice is one node"),
        ("sky.sh", ["--gpus=v5e-16", "--", *IN_BUCKET], "give --gpus=tpu-v5litepod-16."),
        ("slurm.sh", ["--gpus=v5e-16", "--", *TRAINING], "use launch/sky.sh --gpus=tpu-v5litepod-16."),
        ("slurm.sh", ["--nodes=0", "--", *TRAINING], "--nodes=0 must be a number of at least 1"),
        ("slurm.sh", ["--per=core", "--", *TRAINING], "allowed: node, gpu"),
        ("local_processes.sh", ["2"], "the command is missing"),
    ],
)  # fmt: skip
def test_what_is_missing_is_said_in_one_line(machine, script, arguments, words):
    said = launched(script, *arguments, status=2)
    assert said.startswith("error: ") and words in said and said.count("\n") == 1 and not recorded(machine)


@pytest.mark.parametrize("per, tasks", [("node", 1), ("gpu", 8)])
def test_slurm_gets_a_task_for_each_node_or_gpu(machine, per, tasks):
    given = ["--nodes=2", "--gpus=8", f"--per={per}", "--time=01:00:00", "--", *TRAINING]
    (printed,) = launched("slurm.sh", "--dry_run", *given).splitlines()
    launched("slurm.sh", *given)
    checked, again, command = recorded(machine)
    assert checked == again == [*CHECKED, "--check=here", *TRAINING]
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
    [(0, "", False), (2, "", False), (runtime.IN_USE, "", False), (runtime.AGAIN, "", True), (143, "", True), (134, "4", True),
     (runtime.AGAIN, "5", False)],
)  # fmt: skip
def test_a_slurm_job_goes_back_into_the_queue_where_it_can_continue(machine, monkeypatch, status, restarts, goes_back):
    job = slurm_job(machine, "--restarts=5")
    monkeypatch.setenv("SLURM_JOB_ID", "17")
    monkeypatch.setenv("SLURM_CPUS_PER_TASK", "32")  # by --cpus-per-task
    if restarts:
        monkeypatch.setenv("SLURM_RESTART_COUNT", restarts)
    (machine / "status").write_text(str(status))
    ended = subprocess.run(job, capture_output=True, text=True, timeout=60)
    assert ended.returncode == (0 if goes_back else status)
    first, *others = recorded(machine)
    assert first == ["srun", "--cpus-per-task=32", str(machine / "bin" / "python"), *CHECKED[1:], *TRAINING]
    assert others == ([["scontrol", "requeue", "17"]] if goes_back else [])
    assert ("--restarts=5 allows no further start" in ended.stderr) == (restarts == "5")


def test_local_processes_know_their_places_and_the_worst_status_is_kept(tmp_path):
    says = 'echo $JAX_PROCESS_ID of $JAX_NUM_PROCESSES, $CUDA_VISIBLE_DEVICES > "$0/$JAX_PROCESS_ID"; echo $JAX_COORDINATOR_ADDRESS; exit $JAX_PROCESS_ID'
    command = [str(ROOT / "launch" / "local_processes.sh"), "--gpus", "3", "sh", "-c", says, str(tmp_path)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 2 and ended.stderr == ""
    addresses = ended.stdout.split()
    assert len(addresses) == 3 and len(set(addresses)) == 1 and re.fullmatch(r"127\.0\.0\.1:\d+", addresses[0])
    assert [(tmp_path / str(index)).read_text() for index in range(3)] == [f"{i} of 3, {i}\n" for i in range(3)]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_a_signal_ends_all_local_processes(tmp_path, number):
    waits = "import os, pathlib, signal, sys, time\nfor number in (1, 2, 15): signal.signal(number, lambda n, _: sys.exit(70 + n))\n"
    waits += "pathlib.Path(sys.argv[1], os.environ['JAX_PROCESS_ID']).touch()\ntime.sleep(50)"
    command = [str(ROOT / "launch" / "local_processes.sh"), "2", sys.executable, "-c", waits, str(tmp_path)]
    process = subprocess.Popen(["env", "--default-signal=HUP", *command])  # nohup would hide it from the script
    waits_for(lambda: len(list(tmp_path.iterdir())) == 2)
    process.send_signal(number)
    assert process.wait(timeout=60) == 70 + number


@pytest.mark.slow
def test_a_launcher_submits_nothing_that_its_python_refuses(machine, monkeypatch):
    def said(python):
        monkeypatch.setenv("PYTHON", python)
        return launched("slurm.sh", "--", TRAINING[0], f"--workdir={machine / 'l3'}", status=runtime.BAD_INPUT)

    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    assert said(sys.executable).startswith("error: no text is given; ")
    assert said("false").startswith("error: false has no jaxdistill; run pip install -e .")
    assert not recorded(machine)


def waits_for(happens):
    begun = time.monotonic()
    while not happens() and time.monotonic() - begun < 60:
        time.sleep(0.05)

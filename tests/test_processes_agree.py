"""How the processes of a run find each other, agree, and end together; test_processes.py has trainings."""

import os
import socket
import subprocess
import sys

import jax
import pytest

from jaxdistill.core import InputError
from jaxdistill.core.cluster import processes
from jaxdistill.core.cluster.mesh import make_mesh
from jaxdistill.training.workdir import folder as lock
from jaxdistill.training.workdir.folder import LOCK

from program import ABORTED, ROOT, environment, free_address

SLURM = {
    "SLURM_JOB_ID": "1234", "SLURM_STEP_NODELIST": "node[007-008]", "SLURM_NTASKS": "2", "SLURM_STEP_NUM_TASKS": "2",
    "SLURM_PROCID": "1", "SLURM_LOCALID": "0",
}  # fmt: skip


LAUNCHERS = "SLURM_ OMPI_ PMI_ JAX_COORDINATOR JAX_NUM_PROC JAX_PROCESS TPU_ MEGASCALE_ KUBERNETES_ JOB_COMPLETION"
"""Prefixes of the variables by which launchers tell a process its rank."""


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch):
    for name in list(os.environ):
        if name.startswith(tuple(LAUNCHERS.split())):
            monkeypatch.delenv(name)


def test_a_process_without_a_launcher_is_on_its_own(monkeypatch):
    assert not processes.may_have_others()
    with processes.connected(lambda: pytest.fail("there is nobody to agree with")):
        assert processes.count() == 1 and processes.is_first() and processes.gathered({"a": 1}) == [{"a": 1}]
    for name, value in (SLURM | {"JAX_NUM_PROCESSES": "1"}).items():  # tasks may train on their own
        monkeypatch.setenv(name, value)
    assert not processes.may_have_others()


def test_a_vote_is_read_after_its_delay_and_has_the_highest_status(monkeypatch):
    monkeypatch.setattr(processes, "count", lambda: 2)
    vote = processes.StopVote(make_mesh(devices=jax.devices()[:4]), delay=2)
    assert [vote.after_step(requested) for requested in (0, 75, 130, 130, 130)] == [0, 0, 0, 75, 130]


JOINS = """
import sys, time
from jaxdistill.core import cli
from jaxdistill.core.cluster import processes
processes.HEARTBEAT_SECONDS, processes.VERDICT_SECONDS = 6, 9.0
def main(arguments):
    with processes.connected(lambda: {"run.steps": int(arguments[0])}):
        print("joined", processes.gathered([processes.index(), "x" * 9000 * processes.index()])[1][0], flush=True)
        if arguments[1] == "fail":
            raise KeyError("lost")
        if arguments[1] == "sleep":
            time.sleep(100)
        if arguments[1] == "gather":
            processes.gathered(1)
cli.run(main, sys.argv[1:])
"""


def start_both(*arguments) -> list[subprocess.Popen]:
    variables = {"JAX_COORDINATOR_ADDRESS": free_address(), "JAX_NUM_PROCESSES": "2"}
    return [
        subprocess.Popen(
            [sys.executable, "-c", JOINS, *flags], cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            env=environment(devices=2) | variables | {"JAX_PROCESS_ID": str(number)},
        )
        for number, flags in enumerate(arguments)
    ]  # fmt: skip


def outcomes(pair) -> list[tuple[int, str, list[str]]]:
    """Status, standard output, and this project's lines on standard error of each process."""
    outputs = [process.communicate(timeout=90) for process in pair]
    prefixes = ("error: ", "interrupted", "KeyError", "jaxdistill.core.cluster")
    errors = [[line for line in err.split("\n") if line.startswith(prefixes)] for _, err in outputs]
    return [(process.returncode, out, lines) for process, (out, _), lines in zip(pair, outputs, errors, strict=True)]


def test_processes_with_other_options_are_refused_alike():
    (status, _, first), (other, _, second) = outcomes(start_both(["5", ""], ["6", ""]))
    assert status == other == InputError.status and first == second
    (line,) = first
    assert "run.steps is 5 in the first, 6 in the other" in line


def test_the_death_of_one_process_ends_the_other_that_waits_for_it():
    children = start_both(["5", "gather"], ["5", "sleep"])
    for process in children:
        while (line := process.stdout.readline()) != "joined 1\n":
            assert line
    children[1].kill()
    assert outcomes(children)[0][0] == ABORTED


def test_an_error_in_one_process_is_one_line_there_and_ends_the_other():
    (status, _, lines), (other, _, _) = outcomes(start_both(["5", "fail"], ["5", "sleep"]))
    assert (status, other) == (processes.FAILED, ABORTED) and "KeyError: 'lost'" in lines[-1]


HOLDS = "import sys, pathlib, time\nfrom jaxdistill.training.workdir import folder as lock\nwith lock.locked(pathlib.Path(sys.argv[1])):\n    print(1, flush=True); time.sleep(100)"


def test_a_folder_is_locked_for_one_run_and_the_lock_of_a_killed_one_is_taken_over(tmp_path):
    folder = tmp_path / "w"
    other = subprocess.Popen([sys.executable, "-c", HOLDS, folder], cwd=ROOT, stdout=subprocess.PIPE, env=environment())
    other.stdout.readline()
    with pytest.raises(
        InputError, match=rf"in use by another run \(pid {other.pid} on {socket.gethostname()}, started"
    ):
        with lock.locked(folder):
            pass
    other.kill()
    other.communicate()
    with lock.locked(folder):
        assert f"pid {os.getpid()}" in (folder / LOCK).read_text()
        with pytest.raises(InputError, match="in use"), lock.locked(folder):  # by the same process too
            pass

"""How the processes of a run find each other, agree, and end together; without any training, which test_processes.py has."""

import contextlib
import itertools
import os
import socket
import subprocess
import sys
import threading
import time
import types

import pytest

from jaxdistill import main, sweep
from jaxdistill.cli import AGAIN, BAD_INPUT, IN_USE
from jaxdistill.core import InputError
from jaxdistill.processes import FAILED, channel, launch
from jaxdistill.processes.launch import Place
from jaxdistill.training import lock

from program import ROOT, environment, refused, tiny_arguments

SLURM = {
    "SLURM_JOB_ID": "1234", "SLURM_STEP_NODELIST": "node[007-008]", "SLURM_NTASKS": "2", "SLURM_STEP_NUM_TASKS": "2",
    "SLURM_PROCID": "1", "SLURM_LOCALID": "0",
}  # fmt: skip


LAUNCHERS = "SLURM_ OMPI_ PMI_ JAX_COORDINATOR JAX_NUM_PROC JAX_PROCESS TPU_ MEGASCALE_ KUBERNETES_ JOB_COMPLETION"
"""Beginnings of the variables by which launchers tell a process its place."""


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch):
    for name in list(os.environ):
        if name.startswith(tuple(LAUNCHERS.split())):
            monkeypatch.delenv(name)


def set_all(monkeypatch, variables):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)


def test_a_process_without_a_launcher_is_on_its_own():
    assert launch.own_place() is None


def test_slurm_tasks_find_each_other(monkeypatch):
    set_all(monkeypatch, SLURM)
    assert launch.own_place() == Place("node007", 61440 + 1234, 2, 1, [0])


def test_a_slurm_task_with_a_node_to_itself_takes_all_of_its_devices(monkeypatch):
    set_all(monkeypatch, SLURM | {"SLURM_STEP_TASKS_PER_NODE": "1(x2)"})
    assert launch.own_place().devices is None


def test_open_mpi_tasks_find_each_other(monkeypatch):
    ours = {"OMPI_MCA_orte_hnp_uri": "4096.0;tcp://10.0.0.1,10.1.0.1:34911", "OMPI_COMM_WORLD_SIZE": "3"}
    set_all(monkeypatch, ours | {"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_LOCAL_RANK": "2"})
    assert launch.own_place() == Place("10.0.0.1", 61441, 3, 2, [2])


@pytest.mark.parametrize(
    "variables, words",
    [
        ({"OMPI_COMM_WORLD_SIZE": "4"}, "Open MPI has started 4 tasks, which JAX cannot join by itself"),
        ({"PMI_SIZE": "2"}, "MPI has started 2 tasks"),
        ({"SLURM_STEP_NUM_TASKS": "2"}, "SLURM has started 2 tasks"),
        (SLURM | {"JAX_NUM_PROCESSES": "3"}, "SLURM has started 2 tasks, and JAX sees 3 processes"),
        ({"JAX_COORDINATOR_ADDRESS": "here:1"}, "JAX_NUM_PROCESSES"),
        ({"JAX_COORDINATOR_ADDRESS": "here", "JAX_NUM_PROCESSES": "2", "JAX_PROCESS_ID": "0"}, "HOST:PORT"),
        ({"JAX_COORDINATOR_ADDRESS": "here:1", "JAX_NUM_PROCESSES": "2", "JAX_PROCESS_ID": "2"}, "process 2 of 2"),
        ({"JAX_COORDINATOR_ADDRESS": "here:1", "JAX_NUM_PROCESSES": "two", "JAX_PROCESS_ID": "0"}, "is not a number"),
    ],
)
def test_tasks_that_cannot_be_joined_are_refused_with_what_to_set(monkeypatch, variables, words):
    set_all(monkeypatch, variables)
    with pytest.raises(InputError, match="JAX_COORDINATOR_ADDRESS=FIRST_HOST:PORT") as refusal:
        launch.own_place()
    assert words in str(refusal.value)


SLICES = {"MEGASCALE_COORDINATOR_ADDRESS": "node007", "MEGASCALE_NUM_SLICES": "2", "MEGASCALE_SLICE_ID": "1"}


@pytest.mark.parametrize(
    "variables",
    [SLICES, {"MEGASCALE_NUM_SLICES": "1"}, SLICES | {"TPU_WORKER_HOSTNAMES": "here", "MEGASCALE_SLICE_ID": "2"}],
)
def test_variables_of_slices_that_do_not_exist_are_refused(monkeypatch, variables):
    set_all(monkeypatch, variables)
    with pytest.raises(InputError, match="MEGASCALE_NUM_SLICES=[12].* unset what another job has left"):
        launch.own_place()


def test_variables_of_slices_are_left_alone_on_a_tpu_host_and_for_a_training_on_its_own(monkeypatch):
    set_all(monkeypatch, SLICES | {"TPU_WORKER_HOSTNAMES": "here"})
    assert launch.own_place() is None
    monkeypatch.delenv("TPU_WORKER_HOSTNAMES")
    monkeypatch.setenv("JAX_NUM_PROCESSES", "1")
    assert launch.own_place() is None


@pytest.mark.parametrize(
    "variables, words",
    [
        (
            {"KUBERNETES_SERVICE_HOST": "10.0.0.1"},
            "the package kubernetes, which is missing: pip install kubernetes, or",
        ),
        ({}, "KUBERNETES_SERVICE_HOST, where JAX asks for the other pods, is not"),
        ({"JAX_COORDINATOR_ADDRESS": "here:1"}, "JAX_PROCESS_ID is not set beside JAX_COORDINATOR_ADDRESS"),
    ],
)
def test_a_pod_that_jax_cannot_join_says_what_to_install_or_set(monkeypatch, variables, words):
    monkeypatch.setitem(sys.modules, "kubernetes", None)  # its import fails
    for name, value in (variables | {"JOB_COMPLETION_INDEX": "1"}).items():
        monkeypatch.setenv(name, value)
    with pytest.raises(
        InputError, match="set JAX_COORDINATOR_ADDRESS=FIRST_HOST:PORT and JAX_NUM_PROCESSES"
    ) as refusal:
        launch.own_place()
    said = str(refusal.value)
    assert words in said and ("JOB_COMPLETION_INDEX=1 is set" in said) == ("JAX_COORDINATOR_ADDRESS" not in variables)


def test_an_error_of_kubernetes_is_one_line(monkeypatch):
    class ConfigException(Exception):
        """The package's, which has no other base."""

    def load():
        raise ConfigException("Service token file does not exist.\n")

    config = types.SimpleNamespace(load_incluster_config=load)
    monkeypatch.setitem(sys.modules, "kubernetes", types.SimpleNamespace(config=config))
    monkeypatch.setenv("JOB_COMPLETION_INDEX", "1")
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    with pytest.raises(InputError, match=r"cannot be found \(Service token file does not exist.\); set JAX_COORD"):
        launch.own_place()


def test_a_pod_with_all_three_variables_needs_no_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "kubernetes", None)
    given = {"JAX_COORDINATOR_ADDRESS": "here:1", "JAX_NUM_PROCESSES": "2", "JAX_PROCESS_ID": "1"}
    for name, value in (given | {"JOB_COMPLETION_INDEX": "1", "KUBERNETES_SERVICE_HOST": "10.0.0.1"}).items():
        monkeypatch.setenv(name, value)
    assert launch.own_place() == ("here", 1, 2, 1, None)


def test_tasks_may_train_on_their_own(monkeypatch):
    set_all(monkeypatch, SLURM | {"JAX_NUM_PROCESSES": "1"})
    assert launch.own_place() is None


def test_a_sweep_in_several_tasks_is_refused(monkeypatch, tmp_path, capsys):
    set_all(monkeypatch, SLURM)
    given = ["--config=configs/congen.py:tiny", "--grid=run.seed=1,2", f"--workdir={tmp_path / 'w'}"]
    assert "SLURM has started 2 tasks" in refused(sweep, given, capsys) and not (tmp_path / "w").exists()


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def opened_by(places, timeout_s=20.0) -> list:
    """A channel or the refusal of each place, all opened at once."""
    found = [None] * len(places)

    def open_one(number):
        try:
            found[number] = channel.opened(places[number], timeout_s=timeout_s)[0]
        except InputError as error:
            found[number] = str(error)

    threads = [threading.Thread(target=open_one, args=(number,)) for number in range(len(places))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def test_every_process_gets_what_all_give_in_their_order():
    port = free_port()
    channels = opened_by([Place("127.0.0.1", port, 3, index, None) for index in range(3)])
    got = [None] * 3

    def exchange(index):
        got[index] = [channels[index].exchange([index, turn]) for turn in range(3)]

    threads = [threading.Thread(target=exchange, args=(index,)) for index in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert got == [[[[index, turn] for index in range(3)] for turn in range(3)]] * 3
    for one in channels:
        one.leave()


@pytest.mark.parametrize("slow", [0, 1])
def test_a_process_that_takes_its_answer_late_does_not_call_those_dead_that_have_left(monkeypatch, slow):
    port, said = free_port(), []
    monkeypatch.setattr(channel, "end_process", lambda line, status: said.append(line))
    channels = opened_by([Place("127.0.0.1", port, 2, index, None) for index in range(2)])
    peer, both = channels[slow].peers[1 - slow], threading.Barrier(2, timeout=20)
    take, send = peer.inbox.get, peer.send

    def exchange(index):
        channels[index].exchange(index)
        if index != slow:
            channels[index].leave()
            with contextlib.suppress(OSError):  # the other one has hung up first
                channels[index].peers[slow].socket.shutdown(socket.SHUT_RDWR)
            both.wait()

    def late(wait_first, *given, **named):
        found = take() if wait_first else send(*given, **named)
        both.wait()
        time.sleep(0.2)  # what the other has sent is read meanwhile
        return found

    if slow:
        monkeypatch.setattr(peer.inbox, "get", lambda: late(True))
    else:
        monkeypatch.setattr(
            peer, "send", lambda **message: late(False, **message) if "all" in message else send(**message)
        )
    threads = [threading.Thread(target=exchange, args=(index,)) for index in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    channels[slow].leave()
    assert said == []


def test_a_process_that_is_asked_to_stop_stops_all_after_the_same_step():
    port, ahead, ended = free_port(), 2, [0] * 3
    channels = opened_by([Place("127.0.0.1", port, 3, index, None) for index in range(3)])
    started, changed = [0] * 3, threading.Condition()

    def train(index):
        """Steps as a run does: none is more than `ahead` of the slowest."""
        for step in itertools.count(1):
            with changed:
                started[index] = step
                changed.notify_all()
                changed.wait_for(lambda step=step: min(started) >= step - ahead)
            asked = 75 if index == 2 and step >= 4 else 0
            if status := channels[index].stop_status(asked, step, step + ahead + 1):
                ended[index] = (step, status)
                with changed:
                    started[index] = sys.maxsize
                    changed.notify_all()
                return

    threads = [threading.Thread(target=train, args=(index,), daemon=True) for index in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=20)
    assert len(set(ended)) == 1 and ended[0][0] >= 4 and ended[0][1] == 75
    for one in channels:
        one.leave()


def test_a_process_that_still_publishes_is_not_ended_by_the_end_of_another(monkeypatch):
    port, said = free_port(), []
    monkeypatch.setattr(channel, "end_process", lambda line, status: said.append((line, status)))
    monkeypatch.setattr(channel, "GRACE_SECONDS", 0.2)
    first, second = opened_by([Place("127.0.0.1", port, 2, index, None) for index in range(2)])
    with first.finishing():
        second.leave("it was interrupted", status=AGAIN)
        time.sleep(1.0)
        assert said == []
    for _ in range(100):
        time.sleep(0 if said else 0.1)
    ((line, status),) = said
    assert line.startswith("interrupted: process 1 (pid") and status == AGAIN


@pytest.mark.parametrize(
    "others, words",
    [([1], "process 2 of 3 did not come"), ([1, 1], "two processes have JAX_PROCESS_ID=1"), ([], "process 1, 2 of 3")],
)
def test_an_absent_or_doubled_process_is_named_to_all_that_came(others, words):
    port = free_port()
    found = opened_by([Place("127.0.0.1", port, 3, index, None) for index in [0, *others]], timeout_s=2.0)
    assert len(set(found)) == 1 and words in found[0]


def test_a_first_process_that_never_comes_is_named():
    place = Place("127.0.0.1", free_port(), 2, 1, None)
    assert "process 0 of 2 did not answer" in opened_by([place], timeout_s=1.0)[0]


JOINS = """
import sys, time
from jaxdistill import cli, processes
def main(arguments):
    with processes.joined(lambda: {"run.steps": int(arguments[0])}):
        print("joined", flush=True)
        if arguments[1] == "refuse":
            raise cli.InputError("nowhere.txt does not exist")
        if arguments[1] == "fill":
            raise OSError(28, "No space left on device", "/runs/w")
        if arguments[1] == "fail":
            raise KeyError("lost")
        if arguments[1] == "sleep":
            time.sleep(100)
cli.run(main, sys.argv[1:])
"""


def start_both(*arguments) -> list[subprocess.Popen]:
    joined = {"JAX_COORDINATOR_ADDRESS": f"127.0.0.1:{free_port()}", "JAX_NUM_PROCESSES": "2"}
    return [
        subprocess.Popen(
            [sys.executable, "-c", JOINS, *given], cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            env=environment() | joined | {"JAX_PROCESS_ID": str(index)},
        )
        for index, given in enumerate(arguments)
    ]  # fmt: skip


def said_by(processes) -> list[tuple[int, list[str]]]:
    """Status and lines on standard error of each."""
    errors = [process.communicate(timeout=60)[1] for process in processes]
    return [(process.returncode, error.split("\n")[:-1]) for process, error in zip(processes, errors, strict=True)]


def test_processes_with_other_options_are_refused_alike():
    (status, first), (other, second) = said_by(start_both(["5", ""], ["6", ""]))
    assert status == other == 2 and first == second
    assert "run.steps is 5 in the first, 6 in the other" in "".join(first)


@pytest.mark.parametrize("dies", [0, 1])
def test_the_death_of_one_process_ends_the_other_in_one_line(dies):
    both = start_both(["5", "sleep"], ["5", "sleep"])
    for process in both:
        assert process.stdout.readline() == "joined\n"
    both[dies].kill()
    status, lines = said_by(both)[1 - dies]
    assert status == AGAIN and len(list(filter(None, lines))) == 1
    assert f"process {dies} (pid {both[dies].pid} on" in "".join(lines) and "died" in "".join(lines)


@pytest.mark.parametrize(
    "does, words, wanted",
    [
        ("refuse", "nowhere.txt does not exist", BAD_INPUT),
        ("fill", "/runs/w: No space left on device; fix that and run the same command again.", BAD_INPUT),
        ("fail", "KeyError: 'lost'", FAILED),
    ],
)
def test_what_ends_one_process_is_said_by_the_other(does, words, wanted):
    (own_status, own), (status, lines) = said_by(start_both(["5", does], ["5", "sleep"]))
    assert words in "".join(own)
    assert (
        own_status == status == wanted
        and len(list(filter(None, lines))) == 1
        and words in lines[-1]
        and "process 0 (pid" in lines[-1]
    )


HOLDS = "import sys, pathlib, time\nfrom jaxdistill.training import lock\nwith lock.held(pathlib.Path(sys.argv[1])):\n    print(1, flush=True); time.sleep(100)"


def test_a_folder_is_locked_for_one_run_and_the_lock_of_a_killed_one_is_taken_over(tmp_path):
    folder = tmp_path / "w"
    other = subprocess.Popen([sys.executable, "-c", HOLDS, folder], cwd=ROOT, stdout=subprocess.PIPE, env=environment())
    other.stdout.readline()
    with pytest.raises(
        InputError, match=rf"in use by another run \(pid {other.pid} on {socket.gethostname()}, started"
    ):
        with lock.held(folder):
            pass
    other.kill()
    other.communicate()
    with lock.held(folder):
        assert f"pid {os.getpid()}" in lock.holder(folder)
        with pytest.raises(InputError, match="in use"), lock.held(folder):  # by the same process too
            pass


def test_a_training_in_a_folder_in_use_is_refused(tmp_path, capsys):
    arguments = tiny_arguments(tmp_path)
    with lock.held(tmp_path / "w"):
        given = [*arguments, f"--workdir={tmp_path / 'w'}"]
        assert "in use by another run" in refused(main, given, capsys, status=IN_USE)
        assert [path.name for path in (tmp_path / "w").iterdir()] == [".lock"]

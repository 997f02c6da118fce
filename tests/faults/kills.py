"""Kills programs at random moments and compares their results with an undisturbed run's, bit for bit.

  PYTHONPATH=tests:. python -m faults.kills              # some 300 signals

A chain is one command, started and killed up to three times at moments drawn over its undisturbed CPU time, and then run to its
end. Of a run of two processes, one is killed, and the other must end by itself. Ends with status 1 if a result differs.
"""

import argparse
import contextlib
import fcntl
import hashlib
import json
import os
import pathlib
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from typing import IO, Any, NamedTuple

import jax
import numpy as np

from jaxdistill.training.workdir.checkpoint import Checkpoints
from jaxdistill.training.workdir.folder import Workdir

import program
from faults.scenes import SCENES, Scene, training
from tiny_text import made_up

CHAINS = 9
"""Of each scene."""
SIGNALS = {"SIGKILL": 20, "SIGTERM": 6, "SIGHUP": 3}
"""How often each is sent, in proportion."""
EARLIEST, LATEST = 0.1, (0.95, 0.8, 0.65)
"""Between which shares of an undisturbed run's CPU time the first, second and third signal of a chain come."""
JOIN_SECONDS = 45
"""How long processes wait for each other at the start; machines are slow under this load."""
OUTLIVES_SECONDS, TIMEOUT_S = JOIN_SECONDS + 30, 900
"""Longest runs of the other processes after one has died, perhaps before it has joined, and of all without a death."""
CLOCKED = ("sentences_per_s", "seconds/", "goodput", "tflops_per_s", "utilisation")
"""Beginnings of the names of metrics that a clock determines."""


class Kill(NamedTuple):
    """A signal to a program."""

    signal: str
    cpu_s: float
    """Seconds of CPU time that the program has used when it is sent."""
    victim: int
    """Which of its processes."""


class Exit(NamedTuple):
    """How a process ended."""

    status: int
    output: str
    cpu_s: float


class Campaign:
    """Chains of some scenes, in one temporary folder."""

    def __init__(self, folder: pathlib.Path, *, seed: int = 0, attempts: int = 2):
        self.folder, self.shared, self.seed, self.attempts = folder, folder / "shared", seed, attempts
        self.undisturbed: dict[str, tuple[float, dict[str, str]]] = {}
        """CPU seconds and results of a scene that nothing disturbs: of the last attempt, with programs compiled."""
        self.shared.mkdir(parents=True)
        program.tiny_arguments(self.shared)
        pairs = list(zip(made_up(400, words=5), made_up(400, words=5, seed=1), strict=True))
        graded = [(str(number % 6), *pair) for number, pair in enumerate(pairs)]
        for name, rows in {
            "pairs.tsv": [("sentence1", "sentence2"), *pairs],
            "graded.tsv": [("score", "sentence1", "sentence2"), *graded],
            "long.txt": [(line,) for line in made_up(20_000, words=6)],
        }.items():
            (self.shared / name).write_text("\n".join(map("\t".join, rows)) + "\n")

    def chain(self, scene: Scene, number: int, signals: Sequence[str] = ()) -> dict[str, Any]:
        """One chain with these signals, or drawn ones: a record of them, and of what differs at its end."""
        if scene.name not in self.undisturbed:
            if scene.name == "export":
                module, arguments = training(self.shared, self.shared)
                program.run(module, arguments)
            for attempt in range(self.attempts):
                folder = self._folder(scene, f"undisturbed{attempt}")
                exited = self._run(scene, folder)
                assert all(process.status == 0 for process in exited), exited
            self.undisturbed[scene.name] = exited[0].cpu_s, results(scene, folder)
        seconds, expected = self.undisturbed[scene.name]
        rng = random.Random(f"{self.seed} {scene.name} {number}")
        folder = self._folder(scene, str(number))
        sent, wrong = [], []
        signals = signals or rng.choices(list(SIGNALS), list(SIGNALS.values()), k=len(LATEST))
        for name, latest in zip(signals, LATEST, strict=True):
            moment = rng.uniform(EARLIEST, latest) * seconds
            exited = self._run(scene, folder, Kill(name, moment, victim=rng.randrange(scene.processes)))
            if all(process.status == 0 for process in exited):
                sent.append([name, round(moment, 2), "too late"])
                break
            sent.append([name, round(moment, 2), [process.status for process in exited]])
            wrong += [f"a traceback: {process.output[-400:]}" for process in exited if "Traceback" in process.output]
        failed = [process for process in self._run(scene, folder) if process.status or "Traceback" in process.output]
        wrong += [f"the rerun ended with {process.status}: {process.output[-400:]}" for process in failed]
        if not wrong:
            actual = results(scene, folder)
            wrong += [f"{path} differs" for path in {**expected, **actual} if expected.get(path) != actual.get(path)]
        if not wrong:
            shutil.rmtree(folder)
        return {"scene": scene.name, "number": number, "cpu_s": round(seconds, 1), "signals": sent, "wrong": wrong}

    def _folder(self, scene: Scene, name: str) -> pathlib.Path:
        return self.folder / re.sub(r"\W+", "-", f"{scene.name} {name}")

    def _run(self, scene: Scene, folder: pathlib.Path, kill: Kill | None = None) -> list[Exit]:
        """Runs the command, kills it at a moment, and returns how each process ended."""
        folder.mkdir(exist_ok=True)
        module, arguments = scene.command(self.shared, folder)
        env = {"JAXDISTILL_CACHE": str(folder / "cache"), "JAX_COMPILATION_CACHE_DIR": str(self.folder / "compiled")}
        env["JAXDISTILL_JOIN_SECONDS"] = str(JOIN_SECONDS)
        with contextlib.ExitStack() as files:
            outputs = [files.enter_context(tempfile.TemporaryFile("w+")) for _ in range(scene.processes)]
            exited = _watch(_start(scene, module, arguments, env, outputs), outputs, kill)
        for log in folder.glob("run/*.log") if module == "sweep" and kill else ():
            with log.open("ab") as file:  # the training of a killed sweep goes on, and holds its log
                fcntl.flock(file, fcntl.LOCK_EX)
        return exited


def _start(
    scene: Scene, module: str, arguments: list[str], variables: dict[str, str], outputs: Sequence[IO[str]]
) -> list[subprocess.Popen]:
    environments = [variables]
    if scene.processes > 1:
        joined = {"JAX_COORDINATOR_ADDRESS": program.free_address(), "JAX_NUM_PROCESSES": str(scene.processes)}
        environments = [variables | joined | {"JAX_PROCESS_ID": str(number)} for number in range(scene.processes)]
    return [
        program.start(module, arguments, variables=environment, stdout=file, stderr=subprocess.STDOUT)
        for environment, file in zip(environments, outputs, strict=True)
    ]


def _watch(processes: Sequence[subprocess.Popen], outputs: Sequence[IO[str]], kill: Kill | None) -> list[Exit]:
    """Waits for all to end, and sends the signal after the victim's CPU time; after a kill, the others must end soon."""
    used, deadline = [0.0] * len(processes), time.monotonic() + TIMEOUT_S
    late = ""
    while any(process.poll() is None for process in processes):
        used = [max(previous, _cpu_seconds(process.pid)) for previous, process in zip(used, processes, strict=True)]
        if kill and used[kill.victim] >= kill.cpu_s:
            processes[kill.victim].send_signal(getattr(signal, kill.signal))
            deadline = min(deadline, time.monotonic() + (OUTLIVES_SECONDS if kill.signal == "SIGKILL" else TIMEOUT_S))
            kill = None
        if time.monotonic() > deadline:
            late = "Traceback: it still runs\n"
            for process in processes:
                process.kill()
        time.sleep(0.02)
    for file in outputs:
        file.seek(0)
    return [
        Exit(process.returncode, late + file.read(), cpu_s)
        for process, file, cpu_s in zip(processes, outputs, used, strict=True)
    ]


def _cpu_seconds(pid: int) -> float:
    """What a process and its children have used so far, which does not depend on the machine's load."""
    try:
        fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        children = pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except (OSError, IndexError):
        return 0.0
    seconds = sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
    return seconds + sum(_cpu_seconds(int(child)) for child in children)


def results(scene: Scene, folder: pathlib.Path) -> dict[str, str]:
    """Path to digest of all results of a run, without clocks and speeds."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(timeless(path)).hexdigest()
        for pattern in scene.results
        for path in sorted(folder.glob(pattern))
    }


def timeless(path: pathlib.Path) -> bytes:
    """The content of a file, of JSON without what a clock determines; of a checkpoint, all arrays."""
    if path.is_dir():
        state = Checkpoints(Workdir(path.parent.parent), read_only=True).restore_alone(int(path.name))
        leaves = jax.tree.leaves(state._replace(key=jax.random.key_data(state.key)))
        return b"".join(np.asarray(leaf).tobytes() for leaf in leaves)
    if path.name == "metrics.jsonl":
        lines = map(json.loads, path.read_text().splitlines())
        content = [{key: line[key] for key in sorted(line) if not key.startswith(CLOCKED)} for line in lines]
    elif path.name == "results.json":
        content = [[model["scores"], model["failed"]] for model in json.loads(path.read_text())["models"]]
    else:
        return path.read_bytes()
    return json.dumps(content).encode()


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # under nohup, the programs would ignore it too
    records = []
    with tempfile.TemporaryDirectory(prefix="jaxdistill-kills-", ignore_cleanup_errors=True) as temporary:
        campaign = Campaign(pathlib.Path(temporary) / "campaign")
        for scene, number in [(scene, number) for number in range(CHAINS) for scene in SCENES]:
            records.append(record := campaign.chain(scene, number))
            print(f"{'WRONG' if record['wrong'] else 'same'}: {record}", flush=True)
    wrong = sum(bool(record["wrong"]) for record in records)
    print(f"{len(records) - wrong} of {len(records)} chains with the same bits")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()

"""Kills programs at random moments and compares what they come to with an undisturbed run, bit for bit.

  PYTHONPATH=tests:. python -m faults.kills --records=kills.jsonl              # some 300 signals; again: goes on from the records

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
"""After the death of one process, which may be before it has joined, the others may run so long; without one, so long."""
CLOCKED = ("sentences_per_s", "seconds/", "goodput", "tflops_per_s", "utilisation")
"""Beginnings of the names of metrics that a clock determines."""


class Blow(NamedTuple):
    """A signal to a program."""

    signal: str
    cpu_s: float
    """It is sent when the program has used so much CPU."""
    victim: int
    """Which of its processes."""


class Ended(NamedTuple):
    """How a process ended."""

    status: int
    said: str
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
                ended = self._run(scene, folder)
                assert all(one.status == 0 for one in ended), ended
            self.undisturbed[scene.name] = ended[0].cpu_s, results(scene, folder)
        seconds, expected = self.undisturbed[scene.name]
        drawn = random.Random(f"{self.seed} {scene.name} {number}")
        folder = self._folder(scene, str(number))
        sent, wrong = [], []
        signals = signals or drawn.choices(list(SIGNALS), list(SIGNALS.values()), k=len(LATEST))
        for name, latest in zip(signals, LATEST, strict=True):
            moment = drawn.uniform(EARLIEST, latest) * seconds
            ended = self._run(scene, folder, Blow(name, moment, victim=drawn.randrange(scene.processes)))
            if all(one.status == 0 for one in ended):
                sent.append([name, round(moment, 2), "too late"])
                break
            sent.append([name, round(moment, 2), [one.status for one in ended]])
            wrong += [f"a traceback: {one.said[-400:]}" for one in ended if "Traceback" in one.said]
        bad = [one for one in self._run(scene, folder) if one.status or "Traceback" in one.said]
        wrong += [f"the rerun ended with {one.status}: {one.said[-400:]}" for one in bad]
        if not wrong:
            found = results(scene, folder)
            wrong += [f"{path} differs" for path in {**expected, **found} if expected.get(path) != found.get(path)]
        if not wrong:
            shutil.rmtree(folder)
        return {"scene": scene.name, "number": number, "cpu_s": round(seconds, 1), "signals": sent, "wrong": wrong}

    def _folder(self, scene: Scene, name: str) -> pathlib.Path:
        return self.folder / re.sub(r"\W+", "-", f"{scene.name} {name}")

    def _run(self, scene: Scene, folder: pathlib.Path, blow: Blow | None = None) -> list[Ended]:
        """Runs the command, kills it at a moment, and tells how each process ended."""
        folder.mkdir(exist_ok=True)
        module, arguments = scene.command(self.shared, folder)
        own = {"JAXDISTILL_CACHE": str(folder / "cache"), "JAX_COMPILATION_CACHE_DIR": str(self.folder / "compiled")}
        own["JAXDISTILL_JOIN_SECONDS"] = str(JOIN_SECONDS)
        with contextlib.ExitStack() as files:
            said = [files.enter_context(tempfile.TemporaryFile("w+")) for _ in range(scene.processes)]
            ended = _watched(_started(scene, module, arguments, own, said), said, blow)
        for log in folder.glob("run/*.log") if module == "sweep" and blow else ():
            with log.open("ab") as file:  # the training of a killed sweep goes on, and holds its log
                fcntl.flock(file, fcntl.LOCK_EX)
        return ended


def _started(
    scene: Scene, module: str, arguments: list[str], own: dict[str, str], said: Sequence[IO[str]]
) -> list[subprocess.Popen]:
    places = [own]
    if scene.processes > 1:
        joined = {"JAX_COORDINATOR_ADDRESS": program.free_address(), "JAX_NUM_PROCESSES": str(scene.processes)}
        places = [own | joined | {"JAX_PROCESS_ID": str(number)} for number in range(scene.processes)]
    return [
        program.start(module, arguments, variables=place, stdout=file, stderr=subprocess.STDOUT)
        for place, file in zip(places, said, strict=True)
    ]


def _watched(processes: Sequence[subprocess.Popen], said: Sequence[IO[str]], blow: Blow | None) -> list[Ended]:
    """Waits for the end of all, and strikes when the victim has used so much CPU; after a kill, the others must end soon."""
    used, deadline = [0.0] * len(processes), time.monotonic() + TIMEOUT_S
    late = ""
    while any(process.poll() is None for process in processes):
        used = [max(before, _cpu_seconds(process.pid)) for before, process in zip(used, processes, strict=True)]
        if blow and used[blow.victim] >= blow.cpu_s:
            processes[blow.victim].send_signal(getattr(signal, blow.signal))
            deadline = min(deadline, time.monotonic() + (OUTLIVES_SECONDS if blow.signal == "SIGKILL" else TIMEOUT_S))
            blow = None
        if time.monotonic() > deadline:
            late = "Traceback: it still runs\n"
            for process in processes:
                process.kill()
        time.sleep(0.02)
    for file in said:
        file.seek(0)
    return [
        Ended(process.returncode, late + file.read(), cpu_s)
        for process, file, cpu_s in zip(processes, said, used, strict=True)
    ]


def _cpu_seconds(pid: int) -> float:
    """What a process and its children have used so far, which does not depend on the machine's load."""
    try:
        fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        children = pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except (OSError, IndexError):
        return 0.0
    ended_too = sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
    return ended_too + sum(_cpu_seconds(int(child)) for child in children)


def results(scene: Scene, folder: pathlib.Path) -> dict[str, str]:
    """Path to digest of everything that a run comes to, without clocks and speeds."""
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
        kept = [{key: line[key] for key in sorted(line) if not key.startswith(CLOCKED)} for line in lines]
    elif path.name == "results.json":
        kept = [[model["scores"], model["failed"]] for model in json.loads(path.read_text())["models"]]
    else:
        return path.read_bytes()
    return json.dumps(kept).encode()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=pathlib.Path, help="a file with a line for each chain")
    given = parser.parse_args()
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # under nohup, the programs would ignore it too
    chains = [(scene, number) for number in range(CHAINS) for scene in SCENES]
    known = given.records.read_text().splitlines() if given.records and given.records.exists() else []
    records = list(map(json.loads, known))
    done = {(record["scene"], record["number"]) for record in records}
    with tempfile.TemporaryDirectory(prefix="jaxdistill-kills-", ignore_cleanup_errors=True) as temporary:
        campaign = Campaign(pathlib.Path(temporary) / "campaign")
        for scene, number in chains:
            if (scene.name, number) in done:
                continue
            records.append(record := campaign.chain(scene, number))
            print(f"{'WRONG' if record['wrong'] else 'same'}: {record}", flush=True)
            if given.records:
                with given.records.open("a") as file:
                    file.write(json.dumps(record) + "\n")
    wrong = sum(bool(record["wrong"]) for record in records)
    print(f"{len(records) - wrong} of {len(records)} chains with the same bits")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()

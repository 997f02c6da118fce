"""Kills programs at random moments and compares what they come to with an undisturbed run, bit for bit.

  PYTHONPATH=tests:. python -m faults.kills --records=kills.jsonl              # 300 signals; again: goes on from the records
  PYTHONPATH=tests:. python -m faults.kills --short                            # one chain

A chain is one command, started and killed up to three times at moments drawn over its undisturbed CPU time, and then run to its
end. Of a run of two processes, one is killed, and the other must end by itself. Ends with status 1 if a result differs.
"""

import argparse
import collections
import concurrent.futures
import contextlib
import dataclasses
import hashlib
import json
import os
import pathlib
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from typing import IO, Any, NamedTuple

import jax
import numpy as np

from jaxdistill.training.workdir.checkpoint import Checkpoints
from jaxdistill.training.workdir.folder import Workdir

import program
from faults.scenes import SCENES, SHORT, Scene
from tiny_text import made_up

CHAIN = 3
JOIN_SECONDS = 45
"""How long processes wait for each other at the start; machines are slow under this load."""
OUTLIVES_SECONDS = JOIN_SECONDS + 30
"""After the death of one process, which may be before it has joined, the others may run so long."""
TIMEOUT_S = 900
SIGNALS = {"SIGKILL": signal.SIGKILL, "SIGTERM": signal.SIGTERM, "SIGHUP": signal.SIGHUP}
EARLIEST, LATEST = 0.1, (0.95, 0.8, 0.65)
"""Between which shares of an undisturbed run's CPU time the first, second and third signal of a chain come."""
MIX = ("SIGKILL",) * 20 + ("SIGTERM",) * 6 + ("SIGHUP",) * 3
"""Signals are drawn in these proportions."""
CHECKED = 30
"""Bytes of a digest that are kept."""


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
    """All chains of some scenes, in one temporary folder."""

    def __init__(self, folder: pathlib.Path, *, seed: int, attempts: int = 2, say: Callable[[str], None] = print):
        self.folder, self.shared, self.seed, self.attempts, self.say = folder, folder / "shared", seed, attempts, say
        self.shared.mkdir(parents=True)
        program.tiny_arguments(self.shared)
        sentences = made_up(400, words=5)
        pairs = zip(sentences, sentences[1:], strict=False)
        (self.shared / "pairs.tsv").write_text("\n".join(map("\t".join, [("sentence1", "sentence2"), *pairs])) + "\n")
        graded = (
            f"{number % 6}\t{a}\t{b}" for number, (a, b) in enumerate(zip(sentences, sentences[1:], strict=False))
        )
        (self.shared / "graded.tsv").write_text("\n".join(["score\tsentence1\tsentence2", *graded]) + "\n")
        (self.shared / "long.txt").write_text("\n".join(made_up(20_000, words=6)) + "\n")
        self._undisturbed: dict[str, tuple[float, dict[str, str]]] = {}
        self._locks = collections.defaultdict(threading.Lock)

    def undisturbed(self, scene: Scene) -> tuple[float, dict[str, str]]:
        """CPU seconds and results of a run that nothing disturbs; the last of `attempts`, with programs compiled."""
        with self._locks[scene.name]:
            if scene.name not in self._undisturbed:
                for attempt in range(self.attempts):
                    folder = self._folder(scene, f"undisturbed{attempt}")
                    ended = self._run(scene, folder)
                    assert all(one.status == 0 for one in ended), ended
                self._undisturbed[scene.name] = ended[0].cpu_s, results(scene, folder)
                self.say(f"{scene.name}: {ended[0].cpu_s:.1f} s of CPU undisturbed")
            return self._undisturbed[scene.name]

    def chain(self, scene: Scene, number: int, signals: Sequence[str]) -> dict[str, Any]:
        """One chain: a record of its signals, and of what differs at its end."""
        seconds, expected = self.undisturbed(scene)
        drawn = random.Random(f"{self.seed} {scene.name} {number}")
        folder = self._folder(scene, str(number))
        sent, wrong = [], []
        for name, latest in zip(signals, LATEST, strict=True):
            moment = drawn.uniform(EARLIEST, latest) * seconds
            ended = self._run(scene, folder, Blow(name, moment, victim=drawn.randrange(scene.processes)))
            if all(one.status == 0 for one in ended):
                sent.append([name, round(moment, 2), "too late"])
                break
            sent.append([name, round(moment, 2), [one.status for one in ended]])
            wrong += [f"a traceback: {one.said[-400:]}" for one in ended if "Traceback" in one.said]
        ended = self._run(scene, folder)
        bad = [one for one in ended if one.status or "Traceback" in one.said]
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
        *before, (module, arguments) = scene.arguments(self.shared, folder)
        for prepared, given in before:
            program.run(prepared, given)
        with contextlib.ExitStack() as files:
            said = [files.enter_context(tempfile.TemporaryFile("w+")) for _ in range(scene.processes)]
            processes = self._started(scene, folder, module, arguments, said)
            ended = _watched(processes, said, blow)
        if module == "sweep" and blow:  # the training of a killed sweep goes on
            _await_unlocked(folder)
        return ended

    def _started(
        self, scene: Scene, folder: pathlib.Path, module: str, arguments: list[str], said: Sequence[IO[str]]
    ) -> list[subprocess.Popen]:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            address = f"127.0.0.1:{free.getsockname()[1]}"
        kept = {name: value for name, value in program.environment().items() if not name.startswith("JAX_COMPILATION")}
        kept |= {"JAXDISTILL_CACHE": str(folder / "cache"), "JAX_COMPILATION_CACHE_DIR": str(self.folder / "compiled")}
        kept |= {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0", "JAXDISTILL_JOIN_SECONDS": str(JOIN_SECONDS)}
        own = [kept]
        if scene.processes > 1:
            kept |= {"JAX_COORDINATOR_ADDRESS": address, "JAX_NUM_PROCESSES": str(scene.processes)}
            own = [kept | {"JAX_PROCESS_ID": str(number)} for number in range(scene.processes)]
        command = [sys.executable, "-m", f"jaxdistill.{module}", *map(str, arguments)]
        return [
            subprocess.Popen(command, cwd=program.ROOT, env=variables, stdout=file, stderr=subprocess.STDOUT)
            for variables, file in zip(own, said, strict=True)
        ]


def _watched(processes: Sequence[subprocess.Popen], said: Sequence[IO[str]], blow: Blow | None) -> list[Ended]:
    """Waits for the end of all, and strikes when the victim has used so much CPU; after a kill, the others must end soon."""
    used, deadline = [0.0] * len(processes), time.monotonic() + TIMEOUT_S
    late = ""
    while any(process.poll() is None for process in processes):
        used = [max(before, _cpu_seconds(process.pid)) for before, process in zip(used, processes, strict=True)]
        if blow and used[blow.victim] >= blow.cpu_s:
            processes[blow.victim].send_signal(SIGNALS[blow.signal])
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


def _await_unlocked(folder: pathlib.Path) -> None:
    """Waits until no training of a sweep writes its log any more."""
    import fcntl

    for log in folder.glob("run/*.log"):
        with log.open("ab") as file:
            fcntl.flock(file, fcntl.LOCK_EX)


def results(scene: Scene, folder: pathlib.Path) -> dict[str, str]:
    """Path to digest of everything that a run comes to, without clocks and speeds."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(timeless(path)).hexdigest()[:CHECKED]
        for pattern in scene.results
        for path in sorted(folder.glob(pattern))
    }


CLOCKED = ("sentences_per_s", "seconds/", "goodput", "tflops_per_s", "utilisation")
"""Beginnings of the names of metrics that a clock determines."""


def timeless(path: pathlib.Path) -> bytes:
    """The content of a file, of JSON without what a clock determines; of a checkpoint, all arrays."""
    if path.is_dir():
        state = Checkpoints(Workdir(path.parent.parent), read_only=True).restore_alone(int(path.name))
        leaves = jax.tree.leaves(state._replace(key=jax.random.key_data(state.key)))
        return b"".join(np.asarray(leaf).tobytes() for leaf in leaves)
    if path.name == "metrics.jsonl":
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        return json.dumps(
            [{key: line[key] for key in sorted(line) if not key.startswith(CLOCKED)} for line in lines]
        ).encode()
    if path.name == "results.json":
        return json.dumps(
            [[model["scores"], model["failed"]] for model in json.loads(path.read_text())["models"]]
        ).encode()
    return path.read_bytes()


def planned(scenes: Sequence[Scene], seed: int) -> list[tuple[Scene, int, list[str]]]:
    """Every chain with its signals, scenes in turn; the signals of all are mixed in the proportions of `MIX`."""
    count = sum(scene.chains for scene in scenes) * CHAIN
    signals = (MIX * (count // len(MIX) + 1))[:count]
    signals = random.Random(seed).sample(signals, count)
    chains = sorted(
        ((scene, number) for scene in scenes for number in range(scene.chains)),
        key=lambda chain: (chain[1] + 0.5) / chain[0].chains,
    )
    return [
        (scene, number, list(signals[place * CHAIN : (place + 1) * CHAIN]))
        for place, (scene, number) in enumerate(chains)
    ]


def summary(records: Sequence[dict[str, Any]]) -> str:
    """For each scene, the signals that came in time and the reruns with the same bits."""
    lines = []
    for scene in SCENES:
        own = [record for record in records if record["scene"] == scene.name]
        sent = collections.Counter(name for record in own for name, _, came in record["signals"] if came != "too late")
        same = sum(not record["wrong"] for record in own)
        lines += [f"{scene.name}: {dict(sent)}, {same} of {len(own)} chains with the same bits"] * bool(own)
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--short", action="store_true", help="one chain, as in the tests")
    parser.add_argument(
        "--records", type=pathlib.Path, default=pathlib.Path("kills.jsonl"), help="a line for each chain"
    )
    parser.add_argument("--only", default="", help="scenes whose names have these words, such as 'two processes'")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=2, help="chains at a time")
    parser.add_argument("--minutes", type=float, default=90, help="begin no chain after this time")
    given = parser.parse_args()
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # under nohup, the programs would ignore it too
    chosen = [dataclasses.replace(SHORT, chains=1)] if given.short else SCENES
    chosen = [scene for scene in chosen if given.only in scene.name]
    records = [json.loads(line) for line in given.records.read_text().splitlines()] if given.records.exists() else []
    done = {(record["scene"], record["number"]) for record in records}
    left = [chain for chain in planned(chosen, given.seed) if (chain[0].name, chain[1]) not in done]
    stop = time.monotonic() + 60 * given.minutes
    with tempfile.TemporaryDirectory(prefix="jaxdistill-kills-", ignore_cleanup_errors=True) as temporary:
        campaign = Campaign(pathlib.Path(temporary), seed=given.seed)

        def one(chain):
            return campaign.chain(*chain) if time.monotonic() < stop else None

        with concurrent.futures.ThreadPoolExecutor(given.workers) as pool:
            for finished in concurrent.futures.as_completed([pool.submit(one, chain) for chain in left]):
                if not (record := finished.result()):
                    continue
                records.append(record)
                if not given.short:
                    with given.records.open("a") as file:
                        file.write(json.dumps(record) + "\n")
                print(f"{'WRONG' if record['wrong'] else 'same'}: {record}", flush=True)
    print(summary(records))
    sys.exit(any(record["wrong"] for record in records))


if __name__ == "__main__":
    main()

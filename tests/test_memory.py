"""Freed memory is used again while there is plenty of it, and given back where there is not."""

import platform
import subprocess
import sys

import pytest

from jaxdistill.core import runtime

from program import environment

pytestmark = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="mallopt is glibc's")

REUSES = """
import resource
from jaxdistill.core import runtime
runtime.is_scarce = lambda: False
runtime.keep_freed()
pages = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_minflt
bytes(b"x") * (64 << 20)
before = pages()
for _ in range(5):
    bytes(b"x") * (64 << 20)
print(pages() - before)
"""


def said(program, *arguments, **variables):
    given = [sys.executable, "-c", program, *arguments]
    return int(subprocess.run(given, env=environment() | variables, capture_output=True, check=True).stdout)


@pytest.mark.parametrize(("variables", "kept"), [({}, True), ({"MALLOC_MMAP_THRESHOLD_": "65536"}, False)])
def test_freed_blocks_of_any_size_are_used_again_unless_the_environment_says_how(variables, kept):
    pages = said(REUSES, **variables)
    assert (pages < 1000) == kept, "64 MiB are 16,384 pages"


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """Writes what Linux says of a machine of 16 GiB and returns what `is_scarce` makes of it; numbers are GiB."""
    page, gib = runtime.os.sysconf("SC_PAGE_SIZE"), 1 << 30

    def is_scarce(*, held: float = 4, files: float = 1, available: float = 12) -> bool:
        (tmp_path / "statm").write_text(f"0 {int((held + files) * gib) // page} {int(files * gib) // page} 0 0 0 0\n")
        (tmp_path / "meminfo").write_text(
            f"MemTotal: {16 << 20} kB\nMemFree: 1 kB\nMemAvailable: {int(available * (1 << 20))} kB\nHugePages: 0\n"
        )
        for name, file in (("PROCESS", "statm"), ("MACHINE", "meminfo"), ("GROUPS", "cgroup"), ("CONTROL", "control")):
            monkeypatch.setattr(runtime, name, tmp_path / file)
        return runtime.is_scarce()

    (tmp_path / "cgroup").write_text("9:cpu:/elsewhere\n4:memory:/jobs/7\n0::/jobs/7/step\n")
    return is_scarce


@pytest.mark.parametrize(
    ("given", "scarce"), [(dict(), False), (dict(held=9), True), (dict(files=9), False), (dict(available=3), True)]
)
def test_memory_is_scarce_by_what_this_process_holds_and_what_is_available(machine, given, scarce):
    """Files that are mapped are not the process's own."""
    assert machine(**given) == scarce

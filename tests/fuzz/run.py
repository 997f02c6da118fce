"""Fuzzes the readers one after the other, guided by coverage; needs `pip install atheris`.

  PYTHONPATH=tests:. python -m fuzz.run --minutes=10                 # every reader, 10 minutes each
  PYTHONPATH=tests:. python -m fuzz.run --minutes=1 --only=csv,npy

Every reader runs in a process of its own, whose address space is bounded at 2 GB. An input that ends a reader in anything
but an `InputError` of one line, takes more than 20 seconds or more memory is kept in `--keep`; the status is then 1.
"""

import argparse
import json
import pathlib
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time

MEMORY_BYTES = 2 << 30
TIMEOUT_S = 20
READERS = ("jaxdistill.files.reading", "jaxdistill.data", "jaxdistill.evals.read_table", "jaxdistill.encoders")
"""Modules whose branches guide the search."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0, help="for each reader")
    parser.add_argument("--only", default="", help="names of readers, separated by commas")
    parser.add_argument("--keep", default="fuzz-found", help="folder for inputs that were found, and for the summary")
    parser.add_argument("--target", default="", help=argparse.SUPPRESS)
    given, rest = parser.parse_known_args()
    if given.target:
        _fuzz(given.target, rest)
        return
    from fuzz.targets import TARGETS

    names = given.only.split(",") if given.only else list(TARGETS)
    keep = pathlib.Path(given.keep)
    keep.mkdir(parents=True, exist_ok=True)
    results = [_campaign(name, given.minutes, keep) for name in names]
    sys.exit(any(result["found"] for result in results))


def _campaign(name: str, minutes: float, keep: pathlib.Path) -> dict:
    """Fuzzes one reader in a process of its own."""
    from fuzz.targets import TARGETS

    target = TARGETS[name]
    with tempfile.TemporaryDirectory(prefix=f"fuzz-{name}-") as temporary:
        folder = pathlib.Path(temporary)
        corpus = folder / "corpus"
        corpus.mkdir()
        for number, seed in enumerate(target.seeds()):
            (corpus / f"seed{number}").write_bytes(seed)
        arguments = [
            f"-max_total_time={int(minutes * 60)}",
            f"-timeout={TIMEOUT_S}",
            f"-artifact_prefix={folder}/found-",
        ]
        escaped = ["".join(f"\\x{byte:02x}" for byte in word) for word in target.words]
        if escaped:
            (folder / "words").write_text("".join(f'"{word}"\n' for word in escaped))
            arguments.append(f"-dict={folder / 'words'}")
        started = time.monotonic()
        process = subprocess.run(
            [sys.executable, "-m", "fuzz.run", f"--target={name}", str(corpus), *arguments]
            + ["-rss_limit_mb=2048", "-max_len=8192", "-print_final_stats=1"],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        found = sorted(folder.glob("found-*"))
        for path in found:
            shutil.copy(path, keep / f"{name}-{path.name.removeprefix('found-')[:20]}")
        (keep / f"{name}.log").write_text(process.stdout[-20_000:])
        counts = re.findall(r"number_of_executed_units: (\d+)", process.stdout)
        edges = re.findall(r"cov: (\d+)", process.stdout)
        result = {
            "reader": name,
            "minutes": round((time.monotonic() - started) / 60, 1),
            "inputs": int(counts[-1]) if counts else 0,
            "branches": int(edges[-1]) if edges else 0,
            "found": len(found) + (process.returncode != 0 and not found),
        }
    with open(keep / "summary.jsonl", "a", encoding="utf-8") as file:
        file.write(json.dumps(result) + "\n")
    print(json.dumps(result), flush=True)
    return result


def _fuzz(name: str, arguments: list[str]) -> None:
    import atheris

    with atheris.instrument_imports(include=list(READERS)):
        from fuzz.targets import TARGETS, check
    target = TARGETS[name]
    temporary = pathlib.Path(tempfile.mkdtemp(prefix=f"fuzz-{name}-work-"))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    atheris.Setup([sys.argv[0], *arguments], lambda data: check(target, data, temporary))
    atheris.Fuzz()


if __name__ == "__main__":
    main()

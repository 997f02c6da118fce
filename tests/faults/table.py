"""Makes the table of docs/reliability.md: every fault, what the program prints, its status, and what is left on the disk.

  PYTHONPATH=tests:. python -m faults.table                               # all cases
  PYTHONPATH=tests:. python -m faults.table --only='clip_norm|encode'     # those whose input matches
  PYTHONPATH=tests:. python -m faults.table --records=faults.jsonl --write    # goes on where it stopped; writes the tables

An input is marked (new) or (changed) where the tables that are replaced have no such row, or another one.
Refusals that come before any training run in one process, everything else in processes of its own. Ends with status 1 if a case does not end as it should.
"""

import argparse
import json
import pathlib
import re
import signal
import sys
import tempfile
from collections.abc import Mapping

import program
from faults import hostile, inputs, options, outputs, processes, terminal
from faults.harness import Case, Row, observe

SECTIONS = (options, inputs, outputs, terminal, hostile, processes)
DOCUMENT = program.ROOT / "docs" / "reliability.md"
BEGIN, END = "<!-- faults: begin -->", "<!-- faults: end -->"
NEW, CHANGED = " (new)", " (changed)"
PASSING = re.compile(r"\d{4}-\d\d-\d\dT[\d:+]+|'[0-9a-f]{12}'")
"""What differs whenever the tables are made: times and digests."""


def cases() -> list[Case]:
    """All cases of all sections."""
    return [case for section in SECTIONS for case in section.CASES]


def markdown(rows: dict[str, list[Row]], before: str) -> str:
    """One table for each section; rows that are not in the tables before are marked."""
    halves = [line.partition(" | ") for line in before.splitlines()]
    old = {given.removesuffix(NEW).removesuffix(CHANGED): PASSING.sub("", rest) for given, _, rest in halves}
    parts = []
    for title, ended in rows.items():
        lines = []
        for row in ended:
            given, rest = f"| {_cell(row.given)}", f"{_said(row.said)} | {row.status} | {row.left} |"
            mark = NEW if given not in old else CHANGED if old[given] != PASSING.sub("", rest) else ""
            lines.append(f"{given}{mark} | {rest}")
        head = ["| input | the program prints | status | left on the disk |", "|---|---|---|---|"]
        parts.append("\n".join([f"### {title}", "", *head, *lines]))
    return "\n\n".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="regular expression on a case's input")
    parser.add_argument("--records", type=pathlib.Path, help="file of finished cases, which are not run again")
    parser.add_argument("--write", action="store_true", help="replace the tables in docs/reliability.md")
    given = parser.parse_args()
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # under nohup, the programs would ignore it too
    records = read_records(given.records)
    with tempfile.TemporaryDirectory(prefix="jaxdistill-faults-") as temporary:
        for number, case in enumerate(cases()):
            if re.search(given.only, case.given) and case.given not in records:
                folder = pathlib.Path(temporary)
                row = observe(case, folder / str(number), folder / "shared", in_process=case.quick)
                records[case.given] = row
                show(row)
                if given.records and not row.wrong:
                    with given.records.open("a", encoding="utf-8") as file:
                        file.write(json.dumps(row._asdict()) + "\n")
    if given.write:
        write(records)
    sys.exit(any(row.wrong for row in records.values()))


def read_records(path: pathlib.Path | None) -> dict[str, Row]:
    """Input to row of the cases that were run before and ended as they should."""
    if path is None or not path.is_file():
        return {}
    rows = [Row(**json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines()]
    return {row.given: row for row in rows}


def show(row: Row) -> None:
    """Prints a row, and what is wrong with it."""
    print(f"{'WRONG' if row.wrong else 'ok'}: {row.given}: {row.said} ({row.status}; {row.left})", flush=True)
    for fault in row.wrong:
        print(f"    {fault}", flush=True)


def write(records: Mapping[str, Row]) -> None:
    """Puts the tables of all cases into the document; raises `KeyError` if one was not run."""
    rows = {_title(section): [records[case.given] for case in section.CASES] for section in SECTIONS}
    text = DOCUMENT.read_text(encoding="utf-8")
    head, tables, rest = re.split(f"{BEGIN}|{END}", text)
    DOCUMENT.write_text(f"{head}{BEGIN}\n\n{markdown(rows, tables)}\n\n{END}{rest}", encoding="utf-8")


def _title(section) -> str:
    return section.__doc__.splitlines()[0].rstrip(".")


def _said(line: str) -> str:
    """A line as code; long ones lose their middle."""
    line = line if len(line) <= 260 else f"{line[:180]} ... {line[-75:]}"
    return f"`{_cell(line.replace('`', chr(39)))}`" if line else ""


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    main()

"""Makes the table of docs/reliability.md: every fault, what the program prints, its status, and what is left on the disk.

  PYTHONPATH=tests:. python -m faults.table                                  # all cases, each in processes of its own
  PYTHONPATH=tests:. python -m faults.table --only='clip_norm|encode'        # those whose input matches
  PYTHONPATH=tests:. python -m faults.table --write                          # put the table into docs/reliability.md

Ends with status 1 if a case does not end as it should.
"""

import argparse
import pathlib
import re
import sys
import tempfile

import program
from faults import hostile, inputs, options, outputs, processes
from faults.harness import Case, Row, observe

SECTIONS = (options, inputs, outputs, hostile, processes)
DOCUMENT = program.ROOT / "docs" / "reliability.md"
BEGIN, END = "<!-- faults: begin -->", "<!-- faults: end -->"


def cases() -> list[Case]:
    """All cases of all sections."""
    return [case for section in SECTIONS for case in section.CASES]


def markdown(rows: dict[str, list[Row]]) -> str:
    """One table for each section."""
    parts = []
    for title, found in rows.items():
        lines = [f"| {_cell(row.given)} | {_said(row.said)} | {row.status} | {row.left} |" for row in found]
        head = ["| input | the program prints | status | left on the disk |", "|---|---|---|---|"]
        parts.append("\n".join([f"### {title}", "", *head, *lines]))
    return "\n\n".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="regular expression on a case's input")
    parser.add_argument("--write", action="store_true", help="replace the table in docs/reliability.md")
    given = parser.parse_args()
    rows: dict[str, list[Row]] = {}
    with tempfile.TemporaryDirectory(prefix="jaxdistill-faults-") as temporary:
        folder = pathlib.Path(temporary)
        for section in SECTIONS:
            chosen = [case for case in section.CASES if re.search(given.only, case.given)]
            for number, case in enumerate(chosen):
                row = observe(case, folder / section.__name__ / str(number), folder / "shared")
                rows.setdefault(section.__doc__.splitlines()[0].rstrip("."), []).append(row)
                print(
                    f"{'WRONG' if row.wrong else 'ok'}: {row.given}: {row.said} ({row.status}; {row.left})", flush=True
                )
                for fault in row.wrong:
                    print(f"    {fault}", flush=True)
    if given.write:
        text = DOCUMENT.read_text(encoding="utf-8")
        before, after = text.split(BEGIN)[0], text.split(END)[1]
        DOCUMENT.write_text(f"{before}{BEGIN}\n\n{markdown(rows)}\n\n{END}{after}", encoding="utf-8")
    sys.exit(any(row.wrong for found in rows.values() for row in found))


def _said(line: str) -> str:
    """A line as code; long ones lose their middle."""
    line = line if len(line) <= 260 else f"{line[:180]} ... {line[-75:]}"
    return f"`{_cell(line.replace('`', chr(39)))}`" if line else ""


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    main()

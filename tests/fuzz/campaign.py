"""Adds a run of a target to the table of CONTRIBUTING.md: campaign.py TARGET SECONDS LOG.

SECONDS is processor time, LOG is the file with libFuzzer's output. The time and the inputs of all runs are added up.
"""

import fcntl
import re
import sys
from pathlib import Path

DOCUMENT = Path("CONTRIBUTING.md")
BEGIN = "<!-- fuzz: written by SLUICEGATE_WRITE=1 make fuzz -->\n"
END = "\n<!-- end of fuzz -->"
HEAD = "| target | processor time | inputs | edges of code | of them new in its last run |\n|---|--:|--:|--:|--:|"
ROW = re.compile(r"\| `(\w+)` \| ([\d.]+) min \| ([\d,]+) \|.*")


def edges(log: str, step: str) -> int:
    """The edges of code that were reached by then."""
    return int(re.findall(rf"^#\d+\s+{step}\s+cov: (\d+)", log, re.MULTILINE)[-1])


def main(target: str, seconds: float, log: str) -> None:
    before, reached = (edges(log, step) for step in ("INITED", "DONE"))
    inputs = int(re.findall(r"^#(\d+)\s+DONE", log, re.MULTILINE)[-1])
    minutes = seconds / 60
    with DOCUMENT.open("r+") as file:
        # Runs may end at the same time.
        fcntl.flock(file, fcntl.LOCK_EX)
        start, rest = file.read().split(BEGIN)
        table, after = rest.split(END)
        rows = {found[1]: found for found in map(ROW.fullmatch, table.splitlines()) if found}
        if target in rows:
            minutes += float(rows[target][2])
            inputs += int(rows[target][3].replace(",", ""))
        lines = {name: row[0] for name, row in rows.items()}
        lines[target] = f"| `{target}` | {minutes:.1f} min | {inputs:,} | {reached:,} | {reached - before:,} |"
        table = "\n".join(["", HEAD, *(lines[name] for name in sorted(lines)), ""])
        file.seek(0)
        file.write(start + BEGIN + table + END + after)
        file.truncate()


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]), Path(sys.argv[3]).read_text(errors="replace"))

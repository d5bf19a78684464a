"""Turn the JSON of `smbox bench --json` into the table of docs/benchmarks.md.

python benchmarks/table.py out/bench.json
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

COLUMNS = ("row", "case", "smbox", "limit", "ratio", "goal", "", "CPU s/GB")


def table(report: dict[str, Any]) -> str:
    """Return the whole report as Markdown."""
    machine = ", ".join(f"{name} {value}" for name, value in report["machine"].items())
    size = "quick (small sizes: not comparable)" if report["quick"] else "full"
    lines = [f"{machine}; {size} run.", "", _line(COLUMNS), _line(["---"] * len(COLUMNS))]
    return "\n".join(lines + [_line(_cells(result)) for result in report["results"]]) + "\n"


def _cells(result: dict[str, Any]) -> list[str]:
    limit = result["limit"]
    ratio, cpu = result["ratio"], result["cpu_s_per_gb"]
    return [
        result["row"],
        result["case"],
        f"{result['figure']:.2f} {result['unit']}",
        "" if limit is None else f"{limit:.2f} {result['unit']} ({result['limit_name']})",
        "" if ratio is None else f"{ratio:.2f}",
        result["goal"],
        "met" if result["met"] else "**missed**",
        "" if cpu is None else f"{cpu:.2f}",
    ]


def _line(cells: list[str] | tuple[str, ...]) -> str:
    return "| " + " | ".join(cells) + " |"


def main(arguments: list[str]) -> None:
    """Print the table of the report named on the command line."""
    if len(arguments) != 1:
        sys.exit("usage: python benchmarks/table.py REPORT.json")
    print(table(json.loads(Path(arguments[0]).read_text())), end="")


if __name__ == "__main__":
    main(sys.argv[1:])

"""Turn the JSON of `smbox bench --json` into the tables of docs/benchmarks.md.

python benchmarks/table.py out/bench.json
python benchmarks/table.py out/bench-*.json

Of several runs it shows medians; the ratio's is that of the runs' own ratios. A goal is met if
the median of what it is about meets it, whose lowest and highest value stand beside. Quick runs
are not judged.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from statistics import median
from typing import Any

import pages

from smbox.cli.bench.result import Goal

COLUMNS = ("row", "case", "smbox", "limit", "ratio", "goal", "", "CPU s/GB")
RANGE_AT = COLUMNS.index("goal")
IN_COMMON = ("row", "case", "unit", "goal")

Run = dict[str, Any]
Result = dict[str, Any]


def table(runs: list[Run]) -> str:
    """Return runs of the same rows as one Markdown table.

    Raises:
        ValueError: they are not of the same machine, size and rows, or two are the same.
    """
    first = runs[0]
    if any(_kind(run) != _kind(first) for run in runs):
        raise ValueError("the reports are not of the same machine, size and rows")
    if any(run in runs[:index] for index, run in enumerate(runs)):
        raise ValueError("a report is there twice")
    machine = ", ".join(f"{name} {value}" for name, value in first["machine"].items())
    size = "quick (small sizes: not comparable)" if first["quick"] else "full"
    count = "run" if len(runs) == 1 else f"runs, medians of {len(runs)}"
    columns = list(COLUMNS)
    if len(runs) > 1:
        columns.insert(RANGE_AT, "lowest to highest")
    rows = zip(*(run["results"] for run in runs), strict=True)
    cells = [_cells(row, is_quick=first["quick"]) for row in rows]
    shown = pages.table(columns, cells, words=len(columns))
    return f"{machine}; {size} {count}.\n\n{shown}\n"


def _kind(run: Run) -> tuple[object, ...]:
    """Return what runs must have in common to be one table."""
    rows = [[result[name] for name in IN_COMMON] for result in run["results"]]
    return run["machine"], run["quick"], rows


def _cells(results: tuple[Result, ...], *, is_quick: bool) -> list[str]:
    first = results[0]
    ratio, cpu = _median(results, "ratio"), _median(results, "cpu_s_per_gb")
    cells = [
        first["row"],
        first["case"],
        f"{_median(results, 'figure'):.2f} {first['unit']}",
        _limit(results),
        "" if ratio is None else f"{ratio:.2f}",
        first["goal"],
        "" if is_quick else "met" if _is_met(results) else "**missed**",
        "" if cpu is None else f"{cpu:.2f}",
    ]
    if len(results) > 1:
        cells.insert(RANGE_AT, _range(results))
    return cells


def _limit(results: tuple[Result, ...]) -> str:
    """Name the limit; of several runs without how each of them got its best."""
    limit, name = _median(results, "limit"), results[0]["limit_name"]
    if limit is None:
        return ""
    if len(results) > 1:
        name = re.sub(r", \d+K calls$|: \d+$", "", name)
    return f"{limit:.2f} {results[0]['unit']} ({name})"


def _range(results: tuple[Result, ...]) -> str:
    """Tell the lowest and the highest value of what the goal is about."""
    measure = Goal.read(results[0]["goal"]).of
    values = [result[measure] for result in results]
    if None in values:
        return ""
    unit = f" {results[0]['unit']}" if measure == "figure" else ""
    return f"{min(values):.2f} to {max(values):.2f}{unit}"


def _is_met(results: tuple[Result, ...]) -> bool:
    goal = Goal.read(results[0]["goal"])
    value = _median(results, goal.of)
    return value is not None and goal.is_met(value)


def _median(results: tuple[Result, ...], name: str) -> float | None:
    """Return the median of a value; None if a run has none."""
    values = [result[name] for result in results]
    return None if None in values else median(values)


def main(arguments: list[str]) -> None:
    """Print the table of the reports named on the command line."""
    if not arguments or arguments[0] in {"-h", "--help"}:
        sys.exit("usage: python benchmarks/table.py REPORT.json...")
    try:
        runs = [json.loads(Path(argument).read_text()) for argument in arguments]
        print(table(runs), end="")
    except (OSError, ValueError) as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main(sys.argv[1:])

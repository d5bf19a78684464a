"""Turn the JSON of `smbox bench --json` into the table of docs/benchmarks.md.

python benchmarks/table.py out/bench.json
python benchmarks/table.py out/bench-*.json

Of several runs of one machine it shows medians, of the ratio that of the runs' own ratios,
with the lowest and the highest; a goal is met if the median meets it.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from statistics import median
from typing import Any

COLUMNS = ("row", "case", "smbox", "limit", "ratio", "goal", "", "CPU s/GB")
RANGE_AT = COLUMNS.index("goal")

Run = dict[str, Any]


def table(reports: list[Run]) -> str:
    """Return reports of the same rows as one Markdown table.

    Raises:
        ValueError: they are not of the same machine, size and rows.
    """
    first = reports[0]
    if any(_kind(report) != _kind(first) for report in reports):
        raise ValueError("the reports are not of the same machine, size and rows")
    machine = ", ".join(f"{name} {value}" for name, value in first["machine"].items())
    size = "quick (small sizes: not comparable)" if first["quick"] else "full"
    runs = "run" if len(reports) == 1 else f"runs, medians of {len(reports)}"
    columns = list(COLUMNS)
    if len(reports) > 1:
        columns.insert(RANGE_AT, "of the runs")
    lines = [f"{machine}; {size} {runs}.", "", _line(columns), _line(["---"] * len(columns))]
    rows = zip(*(report["results"] for report in reports), strict=True)
    return "\n".join(lines + [_line(_cells(row)) for row in rows]) + "\n"


def _kind(report: Run) -> tuple[object, ...]:
    """Return what reports must have in common."""
    rows = [(result["row"], result["case"], result["goal"]) for result in report["results"]]
    return report["machine"], report["quick"], rows


def _cells(results: tuple[dict[str, Any], ...]) -> list[str]:
    first = results[0]
    ratio, cpu = _median(results, "ratio"), _median(results, "cpu_s_per_gb")
    cells = [
        first["row"],
        first["case"],
        f"{_median(results, 'figure'):.2f} {first['unit']}",
        _limit(results),
        "" if ratio is None else f"{ratio:.2f}",
        first["goal"],
        "met" if _is_met(results) else "**missed**",
        "" if cpu is None else f"{cpu:.2f}",
    ]
    if len(results) > 1:
        cells.insert(RANGE_AT, _range(results))
    return cells


def _limit(results: tuple[dict[str, Any], ...]) -> str:
    limit, names = _median(results, "limit"), {result["limit_name"] for result in results}
    if limit is None:
        return ""
    name = names.pop() if len(names) == 1 else names.pop().partition(",")[0].partition(":")[0]
    return f"{limit:.2f} {results[0]['unit']} ({name})"


def _range(results: tuple[dict[str, Any], ...]) -> str:
    """Say between what the value lies that the goal is about."""
    values = sorted(result[_measure(result)] for result in results)
    return f"{values[0]:.2f} to {values[-1]:.2f}"


def _is_met(results: tuple[dict[str, Any], ...]) -> bool:
    measure, sign, bound = results[0]["goal"].split()
    value = _median(results, measure)
    if value is None:
        return False
    return value >= float(bound) if sign == ">=" else value <= float(bound)


def _measure(result: dict[str, Any]) -> str:
    """Return what the goal is about: "ratio" or "figure"."""
    return str(result["goal"].split()[0])


def _median(results: tuple[dict[str, Any], ...], name: str) -> float | None:
    values = [result[name] for result in results]
    return None if None in values else median(values)


def _line(cells: list[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def main(arguments: list[str]) -> None:
    """Print the table of the reports named on the command line."""
    if not arguments:
        sys.exit("usage: python benchmarks/table.py REPORT.json...")
    reports = [json.loads(Path(argument).read_text()) for argument in arguments]
    try:
        print(table(reports), end="")
    except ValueError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main(sys.argv[1:])

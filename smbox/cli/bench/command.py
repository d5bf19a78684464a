"""The command `smbox bench`: selects rows, runs them and prints the results."""

from __future__ import annotations

import fnmatch
import os
import platform
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import version
from typing import Annotated, Any, Final

import typer

from smbox.cli import output
from smbox.cli.bench import crowd_rows, first_rows, local_rows, small_rows, tcp_rows
from smbox.cli.bench.lab import FULL, QUICK, Lab, open_lab
from smbox.cli.bench.result import Result
from smbox.errors import ConfigError

Row = Callable[[Lab], Iterator[Result]]

ROWS: Final[dict[str, Row]] = {
    "first-calls": first_rows.first_calls,
    "local-get": local_rows.local_get,
    "local-change": local_rows.local_changes,
    "local-unlocked": local_rows.local_unlocked,
    "local-small": local_rows.local_small,
    "local-crowd": crowd_rows.local_crowd,
    "tcp-transfer": tcp_rows.tcp_transfers,
    "tcp-elastic": tcp_rows.tcp_elastic,
    "tcp-narrow": tcp_rows.tcp_narrow,
    "tcp-small": small_rows.tcp_small,
    "tcp-batch": small_rows.tcp_batch,
    "tcp-crowd": crowd_rows.tcp_crowd,
    "node-growth": crowd_rows.node_growth,
    "node-memory": crowd_rows.node_memory,
}
"""Rows by the name that ``--only`` takes, in the order in which they run."""


def chosen(only: Sequence[str]) -> list[str]:
    """Return the rows that any of the patterns names; all of them where there is none.

    Raises:
        ConfigError: a pattern names no row.
    """
    for pattern in only:
        if not fnmatch.filter(ROWS, pattern):
            raise ConfigError(f"no row is named {pattern!r}", rows=" ".join(ROWS))
    return [
        name for name in ROWS if not only or any(fnmatch.fnmatch(name, word) for word in only)
    ]


def machine() -> dict[str, Any]:
    """Return what the figures depend on: the processor and the releases of what moves bytes."""
    return {
        "cpu": cpu_name(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        **{name: version(name) for name in ("smbox", "numpy", "pyzmq")},
    }


def cpu_name() -> str:
    """Return the processor's name as the kernel tells it, else its kind."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            lines = [line for line in file if line.startswith("model name")]
    except OSError:
        lines = []
    return lines[0].partition(":")[2].strip() if lines else platform.machine()


def bench(
    *,
    quick: Annotated[
        bool, typer.Option("--quick", help="Use small sizes and few rounds; judge nothing.")
    ] = False,
    only: Annotated[
        list[str] | None, typer.Option("--only", help="Run the rows of this name or pattern.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Measure smbox on this machine, each figure beside its limit."""
    scale = QUICK if quick else FULL
    names = chosen(only or [])
    found: list[Result] = []
    with open_lab(scale) as lab:
        facts = machine()
        if not json:
            output.print_facts(facts)
        for name in names:
            for result in ROWS[name](lab):
                found.append(result)
                if not json:
                    print(line_of(result, is_judged=not quick), flush=True)
    if json:
        results = [each.as_dict(is_judged=not quick) for each in found]
        output.print_json({"machine": facts, "quick": quick, "results": results})


def line_of(result: Result, *, is_judged: bool) -> str:
    """Write a result as one line of text, with the verdict on its goal if it is judged."""
    beside = ""
    if result.limit is not None:
        beside = f"{result.limit:10.2f} {result.limit_name}"
    ratio = "" if result.ratio is None else f"{result.ratio:6.2f}x"
    verdict = ("ok" if result.is_met else "MISSED") if is_judged else ""
    cpu = "" if result.cpu_s_per_gb is None else f"{result.cpu_s_per_gb:.2f} CPU s/GB"
    return (
        f"{result.row:<15} {result.case:<36} {result.figure:10.2f} {result.unit:<5}"
        f" {ratio:>8} {result.goal!s:<8} {verdict:<7} {beside:<34} {cpu}"
    ).rstrip()

"""Results of runs: made of the figures of the workers, and read by row and seed."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from result_files import Result, grouped
from rows import Row, Settings

from smbox.cli.bench.command import cpu_name

Results = dict[str, list[Result]]
"""By the name of the row, each row's by seed; rows without results are missing."""

COUNTED = ("exchanges", "nbytes", "exchange_ms", "hidden_ms")


def gathered(
    settings: Settings, found: Sequence[dict[str, Any]], *, killed: int = 0, **more: Any
) -> Result:
    """Return a run's result, ready for JSON.

    Args:
        settings: of the run.
        found: figures of the workers, the first one's first; a killed worker has none.
        killed: samples of a killed worker.
        more: figures of the run that no worker knows.
    """
    staleness: Counter[int] = Counter()
    for each in found:
        staleness.update({int(k): n for k, n in each["stats"].get("staleness", {}).items()})
    machine = {
        "cpu": cpu_name(),
        "cores": len(os.sched_getaffinity(0)),
        "torch": torch.__version__,
    }
    return {
        "settings": settings.as_json(),
        **machine,
        "accuracy": found[0]["accuracy"],
        "loss": found[0]["loss"],
        "curve": found[0]["curve"],
        "error": next((each["error"] for each in found if each["error"]), ""),
        "ended": sum(not each["error"] for each in found),
        "samples": killed + sum(each["samples"] for each in found),
        "wall_s": max(f["ended_s"] for f in found) - min(f["began_s"] for f in found),
        "cpu_s": sum(each["cpu_s"] for each in found),
        "staleness": dict(sorted(staleness.items())),
        "stats": _sum(each["stats"] for each in found),
        "group": _sum(each["group"] for each in found),
    } | more


def _sum(counts: Iterable[dict[str, Any]]) -> dict[str, float]:
    counts = list(counts)
    return {name: sum(each.get(name, 0) for each in counts) for name in COUNTED}


def load(folder: Path, wanted: Iterable[Settings]) -> Results:
    """Read the results of these settings that are there; all other files are left out."""
    found = grouped(folder, wanted, lambda settings: settings.row.name)
    return {name: sorted(mine, key=seed) for name, mine in found.items()}


def seed(result: Result) -> int:
    """Return the seed of a run."""
    return int(result["settings"]["seed"])


def accuracy(result: Result) -> float:
    """Return the accuracy of a run in percent."""
    return 100.0 * float(result["accuracy"])


def by_seed(results: Iterable[Result]) -> dict[int, float]:
    """Return the accuracies of a row in percent, by seed."""
    return {seed(each): accuracy(each) for each in results}


def row_of(result: Result) -> Row:
    """Return the row of a run."""
    return Row(**result["settings"]["row"])

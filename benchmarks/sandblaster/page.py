"""The table and the plot of docs/experiments/sandblaster.md, from results that are there."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import pages
from plots import panels
from result_files import Result

from sandblaster.ways import WAYS

PAGE: Final = "sandblaster.md"
PICTURE: Final = "sandblaster.png"


def write(found: Sequence[Result], docs: Path) -> None:
    """Write the table between the page's comments, and the picture beside the page."""
    shown = f"{table(found)}\n\n![Bytes and seconds an iteration]({PICTURE})"
    pages.fill(docs / PAGE, {"rows": f"\n{shown if found else pages.NOT_MEASURED}\n"})
    if found:
        draw(found, docs / PICTURE)


def table(found: Sequence[Result]) -> str:
    """Lay out the page's table."""
    head = (
        "parameters",
        "way",
        "bytes an iteration",
        "of the parameters' bytes",
        "s an iteration: median (least to most)",
        "iterations, trials",
    )
    lines = []
    for row in found:
        count, spans = len(row["seconds"]), row["seconds"]
        nbytes = row["nbytes"] / count
        cells = (
            f"{row['size']:,}",
            row["way"],
            f"{nbytes:,.0f}",
            f"{nbytes / (4 * row['size']):.2%}",
            f"{statistics.median(spans):.3f} ({min(spans):.3f} to {max(spans):.3f})",
            f"{count}, {row['trials']}",
        )
        lines.append(cells)
    return pages.table(head, lines, words=2)


def draw(found: Sequence[Result], path: Path) -> None:
    """Draw bytes and seconds of an iteration over the number of parameters."""
    figures = {
        "bytes": lambda row: row["nbytes"] / len(row["seconds"]),
        "seconds": lambda row: statistics.median(row["seconds"]),
    }
    with panels(path, (1, 2), (9, 3.5)) as (line,):
        for axes, (what, figure) in zip(line, figures.items(), strict=True):
            for way in WAYS:
                mine = [row for row in found if row["way"] == way]
                sizes = [row["size"] for row in mine]
                axes.loglog(sizes, [figure(row) for row in mine], "o-", label=way)
            axes.set(xlabel="parameters", title=f"{what} an iteration")
            axes.legend()

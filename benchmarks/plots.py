"""Plots of pages: panels in a file, all with the same grid."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

DPI = 110


@contextmanager
def panels(
    path: Path,
    shape: tuple[int, int],
    size: tuple[float, float],
    *,
    dpi: int = DPI,
    grid: Literal["both", "x"] = "both",
    which: Literal["major", "both"] = "major",
    **more: Any,
) -> Iterator[NDArray[np.object_]]:
    """Yield panels to draw into; the file is written at the end of the block.

    Args:
        path: of the file, which is a PNG by the path's ending.
        shape: lines and columns of panels.
        size: width and height of the figure in inches.
        dpi: pixels of an inch.
        grid: axes with grid lines.
        which: ticks with grid lines.
        more: for ``Figure.subplots``.

    Yields:
        Axes of matplotlib, by line and column.
    """
    from matplotlib.figure import Figure  # noqa: PLC0415 - slow to import

    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots(*shape, squeeze=False, **more)
    yield axes
    for each in axes.flat:
        each.grid(alpha=0.3, axis=grid, which=which)
    figure.savefig(path, dpi=dpi)

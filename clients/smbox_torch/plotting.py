"""Plots of commands: refused before the work if they cannot be written after it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Final

from smbox.errors import ConfigError

__all__ = ["check_plot", "save"]

FORMAT: Final = "png"
"""Of a path without an ending."""


def check_plot(path: Path) -> None:
    """Check that a plot can be written.

    Raises:
        ConfigError: matplotlib is missing, or writes no such file there; nothing was made.
    """
    try:
        from matplotlib.backend_bases import (  # noqa: PLC0415 - an extra, and slow to import
            FigureCanvasBase,
        )
    except ImportError as error:
        raise ConfigError("a plot needs matplotlib: pip install 'smbox[demo]'") from error
    if _format(path) not in FigureCanvasBase.get_supported_filetypes():
        raise ConfigError("matplotlib writes no such file: use .png", file=str(path))
    # Not of Path: in a folder that this user cannot enter, these raise PermissionError.
    place = path if os.path.exists(path) else path.parent
    if os.path.isdir(path) or not os.access(place, os.W_OK):
        raise ConfigError(
            "no plot can be written there: name a file in a folder that you may write",
            file=str(path),
        )


def save(figure: Any, path: Path, *, dpi: int) -> None:
    """Write a plot in the format of the path's ending.

    Args:
        figure: matplotlib's.
        path: of the plot; PNG if it has no ending.
        dpi: dots per inch.

    Raises:
        ConfigError: it cannot be written.
    """
    try:
        figure.savefig(path, dpi=dpi, format=_format(path))
    except OSError as error:
        raise ConfigError(
            f"the plot cannot be written: {error.strerror}", file=str(path)
        ) from error


def _format(path: Path) -> str:
    return path.suffix[1:].lower() or FORMAT

"""Plug-in commands of other packages: entry points of the group ``smbox.commands``.

A plug-in is loaded only if the command line contains its name or asks for help: `smbox ls`
imports no framework.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.metadata import EntryPoint, entry_points
from typing import Any

import typer

from smbox.cli.output import print_error

GROUP = "smbox.commands"
PASS_THROUGH = {"allow_extra_args": True, "ignore_unknown_options": True}


def available() -> dict[str, EntryPoint]:
    """Return the plug-in commands installed in this environment, by name."""
    return {point.name: point for point in sorted(entry_points(group=GROUP))}


def wanted(argv: Sequence[str], points: dict[str, EntryPoint]) -> list[EntryPoint]:
    """Return the plug-ins that a command line needs.

    Args:
        argv: arguments after the program's name.
        points: all plug-ins, by name.

    Returns:
        The plug-in that the first argument names, if any; all if there are only options (help).
    """
    first = next((word for word in argv if not word.startswith("-")), None)
    if first is None:
        return list(points.values())
    return [points[first]] if first in points else []


def add(app: typer.Typer, point: EntryPoint) -> None:
    """Load a plug-in and add it to ``app``.

    A plug-in is a ``typer.Typer``, or a function with typer's annotations and optionally an
    attribute ``context_settings``. If the import fails, the command prints what is missing and
    exits with 1.
    """
    try:
        loaded: Callable[..., Any] | typer.Typer = point.load()
    except (ImportError, AttributeError) as error:
        app.command(point.name, help=f"Not available: {error}", context_settings=PASS_THROUGH)(
            _unavailable(point.name, str(error))
        )
        return
    if isinstance(loaded, typer.Typer):
        app.add_typer(loaded, name=point.name)
    else:
        settings = getattr(loaded, "context_settings", None)
        app.command(point.name, context_settings=settings)(loaded)


def _unavailable(name: str, reason: str) -> Callable[[], None]:
    def command() -> None:
        print_error(f"'{name}' is not available: {reason}")
        raise typer.Exit(1)

    return command

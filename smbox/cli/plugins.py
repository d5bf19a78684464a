"""Commands of other packages: entry points of the group ``smbox.commands``.

A plug-in is loaded only when its name is on the command line or when help is asked for, so
that `smbox ls` never pays for a framework, and the core never imports one by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.metadata import EntryPoint, entry_points
from typing import Any

import typer

from smbox.cli.output import complain

GROUP = "smbox.commands"
PASS_THROUGH = {"allow_extra_args": True, "ignore_unknown_options": True}


def available() -> dict[str, EntryPoint]:
    """Return the plug-in commands installed in this environment, by name."""
    return {point.name: point for point in sorted(entry_points(group=GROUP))}


def wanted(argv: Sequence[str], points: dict[str, EntryPoint]) -> list[EntryPoint]:
    """Choose the plug-ins that this command line is about.

    Args:
        argv: arguments after the program's name.
        points: all plug-ins, by name.

    Returns:
        The plug-in that the first word names; all of them where no word comes first (help).
    """
    first = next((word for word in argv if not word.startswith("-")), None)
    if first is None:
        return list(points.values())
    return [points[first]] if first in points else []


def add(app: typer.Typer, point: EntryPoint) -> None:
    """Load one plug-in and add it to ``app``.

    It may be a function with typer's annotations (an attribute ``context_settings`` of it is
    handed on), or a ``typer.Typer`` of its own. One that cannot be imported becomes a command
    that says what is missing and exits with 1.
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
        complain(f"'{name}' is not available: {reason}")
        raise typer.Exit(1)

    return command

"""The command `smbox`: its subcommands and the exit codes of errors."""

from __future__ import annotations

import io
import os
import select
import sys
from collections.abc import Callable, Sequence
from importlib import metadata
from typing import Annotated, Final

import typer

from smbox.cli import doctor, keygen, orphans, plugins, regions
from smbox.cli.bench import command as bench
from smbox.cli.output import exit_code, print_error
from smbox.errors import SmboxError

COMMANDS: Final[dict[str, Callable[..., None]]] = {
    "ls": regions.ls,
    "stat": regions.stat,
    "rm": regions.rm,
    "doctor": doctor.doctor,
    "gc": orphans.gc,
    "keygen": keygen.keygen,
    "bench": bench.bench,
}
"""The built-in commands; plug-ins add others."""

STDOUT: Final = 1


def build(argv: Sequence[str]) -> typer.Typer:
    """Return the application: the built-in commands and the plug-ins that ``argv`` needs."""
    app = typer.Typer(
        name="smbox",
        help="A shared memory box: named arrays outside your processes.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode="markdown",
    )
    app.callback()(_options)
    for name, function in COMMANDS.items():
        app.command(name)(function)
    for point in plugins.wanted(argv, plugins.available()):
        plugins.add(app, point)
    return app


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"smbox {metadata.version('smbox')}")
        raise typer.Exit


def _options(
    *,
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version.", is_eager=True, callback=_show_version
        ),
    ] = False,
) -> None:
    """A shared memory box: named arrays outside your processes."""


def main(argv: Sequence[str] | None = None) -> None:
    """Run one command, and exit with its code (docs/cli.md) without a traceback.

    Args:
        argv: arguments after the program's name; None: those of the process.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    _escape_unprintable()
    try:
        try:
            build(words)(args=words, prog_name="smbox")
        finally:
            _flush()
    except SmboxError as error:
        print_error(str(error))
        sys.exit(exit_code(error))
    except KeyboardInterrupt:
        sys.exit(130)
    except OSError as error:
        is_unread = isinstance(error, BrokenPipeError) and _has_lost_reader()
        _discard_unprintable()
        if not is_unread:
            print_error(str(error))
        sys.exit(1)


def _escape_unprintable() -> None:
    """Let stdout escape characters that its encoding lacks, as stderr does.

    Names of regions may have any characters, and the locale's encoding may be ASCII.
    """
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors != "backslashreplace":
        sys.stdout.reconfigure(errors="backslashreplace")


def _flush() -> None:
    if sys.stdout is not None:  # None: it was closed before the program started
        sys.stdout.flush()


def _has_lost_reader() -> bool:
    """Return True if stdout is a pipe or socket that nobody reads any more.

    A flush does not tell: after one that failed, the next may find nothing to write.
    """
    poll = select.poll()
    poll.register(STDOUT, 0)
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))


def _discard_unprintable() -> None:
    """Discard the output if it cannot be flushed, so that it cannot fail again at exit."""
    try:
        _flush()
    except OSError:  # the pipe has no reader, or the disk is full
        with open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), STDOUT)

"""The laboratory's command line: ``python benchmarks/lab run lab.toml train.py``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from lab import enclosure, needs, running, spec
from smbox import toml
from smbox.errors import SmboxError

app = typer.Typer(no_args_is_help=True, add_completion=False, help=__doc__)
PASSED_ON = {"allow_interspersed_args": False, "ignore_unknown_options": True}
File = Annotated[Path, typer.Argument(metavar="LAB.toml", help="Hosts (docs/lab.md).")]
Words = Annotated[list[str], typer.Argument(metavar="COMMAND [ARGUMENT]...")]


@app.command(context_settings=PASSED_ON)
def run(
    file: File,
    words: Words,
    *,
    out: Annotated[Path, typer.Option(help="File of the samples.")] = Path("lab.jsonl"),
    torchrun: Annotated[
        bool, typer.Option("--torchrun", help="Let a torchrun in each host start the workers.")
    ] = False,
    wait_s: Annotated[
        float | None, typer.Option(help="Wait so long instead of each computation.", min=0.0)
    ] = None,
) -> None:
    """Run COMMAND by the workers of all hosts, as `smbox run` does; then remove everything."""
    laboratory = toml.read(file, spec.read)
    raise typer.Exit(running.run(laboratory, words, out=out, torchrun=torchrun, wait_s=wait_s))


@app.command(context_settings=PASSED_ON)
def on(file: File, host: Annotated[str, typer.Argument()], words: Words) -> None:
    """Run COMMAND once in HOST, for example a shell; then remove everything."""
    raise typer.Exit(running.run_on(toml.read(file, spec.read), host, words))


@app.command()
def check() -> None:
    """Say whether this machine can hold a laboratory; else what is missing."""
    lack = needs.missing()
    print(lack or "this machine can hold a laboratory")
    raise typer.Exit(2 if lack else 0)


def main() -> int:
    """Enter namespaces of this program's own first: nothing here touches the machine's."""
    is_local = not sys.argv[1:] or sys.argv[1] == "check" or "--help" in sys.argv[1:3]
    try:
        if not is_local and not enclosure.is_inside():
            return enclosure.run([sys.executable, *sys.argv])
        return app(standalone_mode=True) or 0
    except SmboxError as error:
        print(f"lab: {error}", file=sys.stderr)
        return 2

"""``smbox run``: start a training script on the nodes of a cluster played on this host."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from smbox_torch.board import Board
from smbox_torch.cluster import GRACE_S, Plan
from smbox_torch.launcher import Launcher

__all__ = ["command"]


def command(
    script: Annotated[Path, typer.Argument(help="Python file of the workers.", exists=True)],
    arguments: Annotated[
        list[str] | None, typer.Argument(help="Arguments of the script, options too.")
    ] = None,
    nodes: Annotated[int, typer.Option(help="Nodes to play.", min=1)] = 1,
    per_node: Annotated[int, typer.Option(help="Workers of each node.", min=1)] = 1,
    restarts: Annotated[
        int, typer.Option(help="Start all workers again so often after a failure.", min=0)
    ] = 0,
    address: Annotated[
        str | None, typer.Option(help="Use this memory node and start none.")
    ] = None,
    memory: Annotated[
        str | None, typer.Option(help="Memory of the node that is started, e.g. 1GiB.")
    ] = None,
    grace_s: Annotated[
        float, typer.Option(help="Seconds between SIGTERM and SIGKILL.", min=0.0)
    ] = GRACE_S,
) -> None:
    """Start a memory node and NODES x PER_NODE workers of a script; end them together.

    Workers see torchrun's variables and SMBOX_ADDRESS, so a script that runs here runs under
    torchrun as well. With more than one node, memory is reached over tcp. The first failure
    ends all; its exit code is this command's. Options go before the script's name.
    """
    plan = Plan(
        (sys.executable, str(script), *(arguments or ())),
        nodes=nodes,
        per_node=per_node,
        restarts=restarts,
        address=address,
        memory=memory,
        grace_s=grace_s,
    )
    board = Board([rank // per_node for rank in range(plan.workers)], Console(highlight=False))
    try:
        code = Launcher(plan, board, os.environ).run()
    finally:
        board.close()
    raise typer.Exit(code)


command.context_settings = {"allow_interspersed_args": False}  # type: ignore[attr-defined]
"""What comes after the script's name is the script's."""

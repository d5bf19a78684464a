"""``smbox demo``: a simulated cluster of two nodes with two workers each on this host.

The workers train on scikit-learn's digits with HybridSGD. The workers of a node average their
gradients in shared memory. The nodes make elastic exchanges with a memory node over tcp.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from smbox_torch.demo import digits
from smbox_torch.demo.report import baseline, draw, path_to_memory, table
from smbox_torch.demo.worker import Outcome, Settings
from smbox_torch.launching.cluster import Plan
from smbox_torch.launching.display import Display
from smbox_torch.launching.launcher import Launcher
from smbox_torch.plotting import check_plot

__all__ = ["command"]

MEMORY = "64MiB"


def command(
    nodes: Annotated[int, typer.Option(help="Number of nodes to simulate.", min=1)] = 2,
    per_node: Annotated[int, typer.Option(help="Number of workers on each node.", min=1)] = 2,
    steps: Annotated[int, typer.Option(help="Number of steps of each worker.", min=20)] = 240,
    plot: Annotated[
        Path, typer.Option(help="File for a plot; the extension selects the format.")
    ] = Path("demo.png"),
) -> None:
    """Train a small network on several workers, and compare the center with one process."""
    check_plot(plot)
    data = digits.load()
    console = Console(highlight=False)
    settings = Settings(steps=steps, look=max(1, steps // 15))
    console.print(
        f"{nodes} nodes x {per_node} workers, HybridSGD, a center exchange every "
        f"{settings.period} steps {path_to_memory(nodes)}"
    )
    with tempfile.TemporaryDirectory(prefix="smbox-demo-") as folder:
        workers = _run(Path(folder), settings, nodes, per_node, console)
    console.print("now one process on as many pictures ...")
    alone = baseline(settings, len(workers), data)
    console.print(table(workers, alone, nodes))
    draw(workers, alone, plot)
    console.print(f"curves: {plot.resolve()}")


def _run(
    folder: Path, settings: Settings, nodes: int, per_node: int, console: Console
) -> list[Outcome]:
    """Run the workers; return their results by rank. If one fails, exit with its exit code."""
    (folder / "settings.json").write_text(json.dumps(asdict(settings)))
    plan = Plan(
        (sys.executable, "-P", "-m", "smbox_torch.demo.worker", str(folder)),
        nodes=nodes,
        per_node=per_node,
        memory=MEMORY,
    )
    display = Display([place.group for place in plan.places], console)
    try:
        code = Launcher(plan, display, os.environ).run()
    finally:
        display.close()
    if code:
        raise typer.Exit(code)
    return [
        Outcome(**json.loads((folder / f"{rank}.json").read_text()))
        for rank in range(plan.workers)
    ]

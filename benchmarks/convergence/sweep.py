"""Train all ways with all seeds, one run after the other; finished runs are not repeated.

python benchmarks/convergence/sweep.py --data cifar10.tar.gz

Each run leaves OUT/SETTING/WAY-SEED.json; ``report.py OUT/SETTING`` writes the page. Whatever
interrupts it, calling it again goes on with the runs that are missing.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import platform
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import task
import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from ways import WAYS, Way
from worker import Settings

from smbox_torch.board import Board
from smbox_torch.children import end_all
from smbox_torch.cluster import GRACE_S, Plan
from smbox_torch.launcher import Launcher
from smbox_torch.node_keeper import NodeKeeper

EPOCHS, SHARE = 8.0, 1.0
SEEDS = "0,1,2"
MEMORY = "512MiB"
"""Each tcp channel that fetches needs some 16 MiB for answers; it is not taken before."""

WORKER = Path(__file__).with_name("worker.py")

Told = Callable[[dict[str, Any]], None]


class Watcher(Board):
    """Keeps what the workers print, and passes on what rank 0 reports.

    Args:
        workers: how many there are.
        told: is called with rank 0's reports.
    """

    def __init__(self, workers: int, told: Told) -> None:
        super().__init__([0] * workers, Console(file=io.StringIO(), width=100))
        self._told = told

    def report(self, rank: int, fields: dict[str, Any]) -> None:
        """Pass on a report of rank 0."""
        if rank == 0:
            self._told(fields)

    def said(self) -> str:
        """Return all that was printed."""
        file = self._console.file
        assert isinstance(file, io.StringIO)
        return file.getvalue()


def run(settings: Settings, told: Told) -> dict[str, Any]:
    """Train one way with one seed.

    Args:
        settings: of the run.
        told: is called with reports of its progress.

    Returns:
        The figures of the run, ready for JSON.

    Raises:
        RuntimeError: a worker failed; the message holds what the workers printed.
    """
    way = Way(**settings.way)
    with tempfile.TemporaryDirectory(prefix="smbox-convergence-") as folder:
        (Path(folder) / "settings.json").write_text(json.dumps(asdict(settings)))
        plan = Plan(
            (sys.executable, str(WORKER), folder),
            nodes=way.nodes,
            per_node=way.workers // way.nodes,
            memory=MEMORY,
            torchrun_env=True,  # for DistributedDataParallel
        )
        node_cpu_s = _launch(plan, Watcher(way.workers, told))
        found = [
            json.loads((Path(folder) / f"{rank}.json").read_text())
            for rank in range(way.workers)
        ]
    return asdict(settings) | _machine() | _together(found) | {"node_cpu_s": node_cpu_s}


def _launch(plan: Plan, watcher: Watcher) -> float:
    """Run the workers to their end; returns the CPU time of the memory node, in seconds."""
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    keeper = NodeKeeper(plan, env, watcher.note)
    try:
        keeper.await_ready()
        code = Launcher(replace(plan, address=keeper.address), watcher, env).run()
        if code == 130:
            raise KeyboardInterrupt
        if code:
            raise RuntimeError(f"a worker failed ({code}):\n{watcher.said()}")
        times = psutil.Process(keeper.child.pid).cpu_times()
        return float(times.user + times.system)
    finally:
        end_all([keeper.child], GRACE_S)


def _machine() -> dict[str, Any]:
    cpu = platform.processor() or platform.machine()
    return {"cpu": cpu, "cores": os.cpu_count(), "torch": torch.__version__}


def _together(found: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Add up the figures of the workers of a run."""
    staleness: Counter[int] = Counter()
    for each in found:
        staleness.update({int(k): n for k, n in each["stats"].get("staleness", {}).items()})
    return {
        "accuracy": found[0]["accuracy"],
        "loss": found[0]["loss"],
        "curve": found[0]["curve"],
        "samples": sum(each["samples"] for each in found),
        "wall_s": max(f["ended_s"] for f in found) - min(f["began_s"] for f in found),
        "cpu_s": sum(each["cpu_s"] for each in found),
        "staleness": dict(sorted(staleness.items())),
        "stats": _sum([each["stats"] for each in found]),
        "group": _sum([each["group"] for each in found]),
    }


def _sum(counts: Sequence[dict[str, Any]]) -> dict[str, float]:
    names = ("exchanges", "nbytes", "exchange_ms", "hidden_ms")
    return {name: sum(each.get(name, 0) for each in counts) for name in names}


def arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, help="tar.gz of JPEGs, or torchvision's folder")
    cache = Path(tempfile.gettempdir()) / "smbox-cifar10"
    parser.add_argument("--cache", type=Path, default=cache, help="for the decoded pictures")
    parser.add_argument("--out", type=Path, default=Path("out/convergence"))
    parser.add_argument("--ways", default=",".join(WAYS), help="names, with commas")
    parser.add_argument("--seeds", default=SEEDS, help="numbers, with commas")
    parser.add_argument("--epochs", type=float, default=EPOCHS)
    parser.add_argument("--share", type=float, default=SHARE, help="of the training set")
    parser.add_argument("--lr", type=float, help="instead of each way's own, for tuning")
    parser.add_argument("--looks", type=int, default=10, help="points of the curves")
    read = parser.parse_args(words)
    unknown = set(read.ways.split(",")) - set(WAYS)
    if unknown:
        parser.error(f"no such ways: {sorted(unknown)}; there are {', '.join(WAYS)}")
    return read


def todo(read: argparse.Namespace) -> dict[Path, Settings]:
    """Return the runs that are asked for, by the file of each: seed by seed, way by way."""
    folder = read.out / f"epochs-{read.epochs:g}-share-{read.share:g}"
    ways = [WAYS[name] for name in read.ways.split(",")]
    if read.lr is not None:
        folder /= f"lr-{read.lr:g}"
        ways = [replace(way, lr=read.lr) for way in ways]
    return {
        folder / f"{way.name}-{seed}.json": Settings(
            asdict(way), int(seed), read.epochs, read.share, str(read.cache), read.looks
        )
        for seed in read.seeds.split(",")
        for way in ways
    }


def _show(progress: Progress, bar: TaskID, told: dict[str, Any]) -> None:
    progress.update(bar, completed=told.get("step", 0), total=told.get("steps"))


def main(words: Sequence[str] | None = None) -> None:
    """Do the runs that are missing."""
    read = arguments(words)
    if read.data is not None:
        task.decode(read.data, read.cache)
    runs = todo(read)
    missing = {path: each for path, each in runs.items() if not path.exists()}
    columns = (
        TextColumn("{task.description}"),
        BarColumn(20),
        TextColumn("{task.completed:.0f}/{task.total:.0f}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns) as progress:
        all_runs = progress.add_task(
            "runs", total=len(runs), completed=len(runs) - len(missing)
        )
        for path, settings in missing.items():
            bar = progress.add_task(path.stem, total=1)
            result = run(settings, partial(_show, progress, bar))
            path.parent.mkdir(parents=True, exist_ok=True)
            beside = path.with_suffix(".part")
            beside.write_text(json.dumps(result, indent=1))
            beside.rename(path)
            progress.remove_task(bar)
            progress.advance(all_runs)
            progress.console.print(
                f"{path.stem:22} {result['accuracy']:6.1%}  {result['wall_s']:6.1f} s"
                f"  {result['cpu_s']:6.1f} CPU s"
            )


if __name__ == "__main__":
    main()

"""The mean of all ranks' arrays: SyncGroup's, RingAllReduce's and gloo's, in one run.

python benchmarks/all_reduce.py [--sizes 1,16,100] [--ranks 2,4] [--rounds 31] [--json]

Ranks are processes of this host with one thread each. The three take turns, round by round,
so that whatever else the machine does hits them alike; a round's time is that of its slowest
rank, and the median over the rounds is shown. The gradients are set by hand: nothing is
computed that could hide an exchange.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import statistics
import tempfile
import time
import uuid
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import command_line
import torch
from rich.console import Console
from rich.table import Table
from torch import distributed

from smbox_torch.averaging.ring_all_reduce import RingAllReduce
from smbox_torch.averaging.sync_group import SyncGroup
from smbox_torch.optimizer.torch_group import CommunicationWarning
from smbox_torch.world import World

MIB = 1 << 20
SKIPPED = 2
"""Rounds before those that count: pages are touched, connections made."""

PAUSE_S = 0.01
TIMEOUT_S = 300.0


class _Files:
    """Lets the ranks of a ring learn each other's addresses through files."""

    def __init__(self, folder: Path, world: World) -> None:
        self._folder = folder
        self._world = world

    def __call__(self, address: str) -> Sequence[str]:
        beside = self._folder / f"{self._world.rank}.part"
        beside.write_text(address)
        beside.rename(self._folder / str(self._world.rank))
        paths = [self._folder / str(rank) for rank in range(self._world.world_size)]
        deadline_s = time.monotonic() + TIMEOUT_S
        while not all(path.exists() for path in paths):
            if time.monotonic() > deadline_s:
                raise TimeoutError("a rank never came")
            time.sleep(PAUSE_S)
        return [path.read_text() for path in paths]


class _Still(torch.optim.Optimizer):
    """Takes gradients and leaves the parameters alone: only the averaging takes time."""

    def step(self, closure: Any = None) -> Any:
        """Do nothing."""


def _optimizer(nbytes: int) -> _Still:
    """An optimizer of parameters of 1 MiB each, or one smaller one, with gradients."""
    each = min(nbytes, MIB) // 4
    parameters = [torch.nn.Parameter(torch.zeros(each)) for _ in range(nbytes // 4 // each)]
    for parameter in parameters:
        parameter.grad = torch.ones(each)
    return _Still(parameters, {})


def _gloo_only(nbytes: int) -> Callable[[], None]:
    gradient = torch.ones(nbytes // 4)

    def average() -> None:
        distributed.all_reduce(gradient)
        gradient.div_(distributed.get_world_size())

    return average


def _rank(world: World, folder: Path, nbytes: int, rounds: int) -> None:
    """Do all rounds of one rank and leave its times in ``folder/RANK.json``."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", CommunicationWarning)  # gloo is here to be compared with
    store = f"file://{folder}/store"
    distributed.init_process_group("gloo", store, rank=world.rank, world_size=world.world_size)
    sync = SyncGroup(_optimizer(nbytes), world=world)
    ring = RingAllReduce(
        _optimizer(nbytes), world=world, exchange=_Files(folder, world), timeout_s=TIMEOUT_S
    )
    ways = {
        "SyncGroup": sync.step,
        "RingAllReduce": ring.step,
        "gloo": _gloo_only(nbytes),
    }
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(SKIPPED + rounds):
        for name, average in ways.items():
            distributed.barrier()
            began_s = time.monotonic()
            average()
            times[name].append(time.monotonic() - began_s)
    (folder / f"{world.rank}.json").write_text(json.dumps(times))
    distributed.barrier()
    ring.close()
    sync.close()
    os._exit(0)  # Gloo's threads now and then abort a process that ends in order


def measure(ranks: int, mib: float, rounds: int) -> list[dict[str, Any]]:
    """Measure all ways with so many ranks at one size.

    Args:
        ranks: processes.
        mib: of each rank's array, in MiB.
        rounds: that count.

    Returns:
        One row per way: name, ranks, mib, median_ms, and best and worst round in ms.
    """
    run_id = uuid.uuid4().hex
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory(prefix="smbox-all-reduce-") as name:
        members = [
            context.Process(
                target=_rank,
                args=(
                    World(rank, rank, ranks, ranks, run_id=run_id),
                    Path(name),
                    round(mib * MIB),
                    rounds,
                ),
            )
            for rank in range(ranks)
        ]
        for member in members:
            member.start()
        for member in members:
            member.join()
        if any(member.exitcode for member in members):
            raise RuntimeError("a rank failed; its words are above")
        told = [json.loads((Path(name) / f"{rank}.json").read_text()) for rank in range(ranks)]
    return [_row(way, [each[way] for each in told], ranks, mib) for way in told[0]]


def _row(way: str, times: list[list[float]], ranks: int, mib: float) -> dict[str, Any]:
    slowest = [1000.0 * max(each) for each in zip(*times, strict=True)][SKIPPED:]
    return {
        "way": way,
        "ranks": ranks,
        "mib": mib,
        "median_ms": statistics.median(slowest),
        "best_ms": min(slowest),
        "worst_ms": max(slowest),
    }


def table(rows: Sequence[dict[str, Any]]) -> Table:
    """Lay out the rows, each way beside gloo's median of the same size."""
    shown = Table(title=f"Mean of all ranks' arrays, {os.cpu_count()} cores")
    for column in ("ranks", "MiB", "way", "median ms", "best", "worst", "gloo / way"):
        shown.add_column(column, justify="left" if column == "way" else "right")
    gloo = {(r["ranks"], r["mib"]): r["median_ms"] for r in rows if r["way"] == "gloo"}
    for row in rows:
        beside = gloo[row["ranks"], row["mib"]] / row["median_ms"]
        figures = (f"{row[name]:.2f}" for name in ("median_ms", "best_ms", "worst_ms"))
        shown.add_row(
            str(row["ranks"]), f"{row['mib']:g}", row["way"], *figures, f"{beside:.2f}x"
        )
    return shown


def main(words: Sequence[str] | None = None) -> None:
    """Measure what the command line asks for."""
    parser = command_line.parser(__doc__, "json")
    parser.add_argument(
        "--sizes", type=command_line.decimals, default="1,16,100", help="MiB, with commas"
    )
    parser.add_argument(
        "--ranks", type=command_line.numbers, default="2,4", help="numbers, with commas"
    )
    parser.add_argument("--rounds", type=int, default=31)
    read = parser.parse_args(words)
    rows = [
        row
        for ranks in read.ranks
        for mib in read.sizes
        for row in measure(ranks, mib, read.rounds)
    ]
    print(json.dumps(rows)) if read.json else Console().print(table(rows))


if __name__ == "__main__":
    main()

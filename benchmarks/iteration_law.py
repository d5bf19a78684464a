"""ShmCaffe's law of an iteration's time, checked: its four parts, predicted and measured.

python benchmarks/iteration_law.py [--sizes 53,98,214,230,528] [--transport tcp] [--json]

ShmCaffe (ICDCS 2018): T_iter = max(T_comp, T_wwi + T_ugw) + T_rgw + T_ulw, with

    T_rgw  read the center                T_wwi  write the increment to the memory
    T_ulw  move the worker                T_ugw  add the increment to the center
    T_comp compute the gradient

The parts are measured one by one, as medians, on one worker, before and after whole iterations
of SEASGD with an update thread and its increments in a region of its own (with --in-request
they travel in the add itself, and T_wwi is a part of T_ugw). T_comp is gradients of a small
network, as many as take half of T_wwi + T_ugw, where the add decides, and twice as long, where
the gradient does; it is measured alone, as the other parts are. The law takes for granted that
computation and update thread do not slow each other down: that needs a core for each of them,
and over tcp one for the memory node. The last columns have what EASGD's one fused exchange
takes in place of all four parts, and how much shorter an iteration of it is.
"""

from __future__ import annotations

import json
import statistics
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import command_line
import pages
import torch
from computation import Computation

import smbox
from smbox.memory.layout import RegionKind
from smbox_torch.elastic.easgd import EASGD
from smbox_torch.elastic.seasgd import SEASGD
from smbox_torch.elastic.stability import StabilityWarning
from smbox_torch.optimizer.wrapper import BoxOptimizer

MIB = 1 << 20
SIZES = {
    53: "Inception_v1",
    98: "ResNet50",
    214: "Inc-ResNet-v2",
    230: "ResNet152",
    528: "VGG16",
}
MOVING_RATE = 0.2
SKIPPED = 2
"""Iterations before those that count: pages are touched, threads started."""


@dataclass(frozen=True)
class Row:
    """One model size with one time of computation; all times in milliseconds.

    Attributes:
        mib: size of the model.
        compute_ms: T_comp.
        read_ms: T_rgw.
        move_ms: T_ulw.
        write_ms: T_wwi.
        add_ms: T_ugw.
        predicted_ms: by the law.
        measured_ms: median iteration of SEASGD.
        fused_ms: median exchange of EASGD.
        fused_iteration_ms: median iteration of EASGD, not overlapped.
    """

    mib: float
    compute_ms: float
    read_ms: float
    move_ms: float
    write_ms: float
    add_ms: float
    predicted_ms: float
    measured_ms: float
    fused_ms: float
    fused_iteration_ms: float

    @property
    def error(self) -> float:
        """By how much of the measured time the law is off; above 0 it promises too much."""
        return self.predicted_ms / self.measured_ms - 1.0

    @property
    def saved(self) -> float:
        """Share of SEASGD's iteration that EASGD's fused exchange saves."""
        return 1.0 - self.fused_iteration_ms / self.measured_ms


class _Still(torch.optim.Optimizer):
    """Leaves the parameters alone: the law has no part for the local step."""

    def step(self, closure: Any = None) -> Any:
        """Do nothing."""


def law(compute: float, read: float, move: float, write: float, add: float) -> float:
    """Return T_iter of its parts, all in one unit."""
    return max(compute, write + add) + read + move


def measure(box: smbox.Box, mib: float, rounds: int, *, in_request: bool = False) -> list[Row]:
    """Measure one size of model.

    Args:
        box: on a node with room for twice as much and more.
        mib: of the model, float32.
        rounds: of each kind that count.
        in_request: SEASGD has no increment region; its moves travel in the add.

    Returns:
        A row where the add decides and one where the gradient does.
    """
    before = _parts(box, mib, rounds, in_request=in_request)
    fused_ms = _fused(box, mib, rounds)
    increment = None if in_request else "0"
    add_ms = before["write"] + before["add"]
    rows = []
    for share in (0.5, 2.0):
        computation = Computation(share * add_ms)
        alone_ms = _alone(computation, rounds)
        seasgd_ms = _iterations(box, SEASGD, mib, rounds, computation, increment=increment)
        easgd_ms = _iterations(box, EASGD, mib, rounds, computation)
        compute_ms = (alone_ms + _alone(computation, rounds)) / 2.0
        rows.append((compute_ms, seasgd_ms, easgd_ms))
    after = _parts(box, mib, rounds, in_request=in_request)
    parts = {name: (before[name] + after[name]) / 2.0 for name in before}
    told = [parts[name] for name in ("read", "move", "write", "add")]
    return [
        Row(mib, compute_ms, *told, law(compute_ms, **parts), seasgd_ms, fused_ms, easgd_ms)
        for compute_ms, seasgd_ms, easgd_ms in rows
    ]


def _alone(computation: Computation, rounds: int) -> float:
    """Time the computation without any exchange: the median, in milliseconds."""
    return _medians({"compute": computation.run}, rounds)["compute"]


def _still(mib: float) -> _Still:
    return _Still([torch.nn.Parameter(torch.zeros(round(mib * MIB) // 4))], {})


def _parts(box: smbox.Box, mib: float, rounds: int, *, in_request: bool) -> dict[str, float]:
    """Time each part alone: medians, in milliseconds."""
    count = round(mib * MIB) // 4
    x, c, d = (torch.zeros(count) for _ in range(3))
    center = box.create("law.parts.center", shape=count)
    increment = box.create("law.parts.increment", shape=count)

    def move() -> None:
        torch.sub(x, c, out=d)
        d.mul_(MOVING_RATE)
        x.sub_(d)

    def write() -> None:
        if not in_request:
            increment.put(d)

    def add() -> None:
        if in_request:
            center.accumulate(d)
        else:
            center.accumulate_from(increment)

    works = {"read": lambda: center.get(out=c), "move": move, "write": write, "add": add}
    found = _medians(works, rounds)
    box.free(center)
    box.free(increment)
    return found


def _fused(box: smbox.Box, mib: float, rounds: int) -> float:
    """Time the fused exchange alone: the median, in milliseconds."""
    count = round(mib * MIB) // 4
    x = torch.zeros(count)
    center = box.create("law.fused", shape=count)
    found = _medians({"fused": lambda: center.elastic(x, MOVING_RATE)}, rounds)
    box.free(center)
    return found["fused"]


def _iterations(
    box: smbox.Box,
    algorithm: Callable[..., BoxOptimizer],
    mib: float,
    rounds: int,
    computation: Computation,
    **options: Any,
) -> float:
    """Time whole iterations of EASGD or SEASGD: the median, in milliseconds."""
    shared = {"period": 1, "moving_rate": MOVING_RATE, "workers": 1}
    optimizer = algorithm(_still(mib), box, "law.run", **shared, **options)

    def iterate() -> None:
        computation.run()
        optimizer.step()

    with optimizer:
        found = _medians({"iteration": iterate}, rounds)
    for region in box.regions():
        if region.kind == RegionKind.ARRAY:
            box.free(region.name)
    return found["iteration"]


def _medians(works: dict[str, Callable[[], Any]], rounds: int) -> dict[str, float]:
    """Do pieces of work in turns; return the median time of each, in milliseconds."""
    times: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(SKIPPED + rounds):
        for name, work in works.items():
            began_s = time.monotonic()
            work()
            times[name].append(1000.0 * (time.monotonic() - began_s))
    return {name: statistics.median(each[SKIPPED:]) for name, each in times.items()}


HEAD = "MiB", "as", "comp", "wwi", "ugw", "rgw", "ulw", "law", "measured", "error"
FUSED = "fused", "EASGD", "saved"


def table(rows: Sequence[Row]) -> str:
    """Lay out the rows."""
    return pages.table([*HEAD, *FUSED], [_cells(row) for row in rows])


def _cells(row: Row) -> list[str]:
    parts = row.compute_ms, row.write_ms, row.add_ms, row.read_ms, row.move_ms
    times = (*parts, row.predicted_ms, row.measured_ms)
    return [
        f"{row.mib:g}",
        SIZES.get(round(row.mib), ""),
        *(f"{each:.1f}" for each in times),
        f"{row.error:+.0%}",
        f"{row.fused_ms:.1f}",
        f"{row.fused_iteration_ms:.1f}",
        f"{row.saved:.0%}",
    ]


def main(words: Sequence[str] | None = None) -> None:
    """Measure what the command line asks for."""
    parser = command_line.parser(__doc__, "json")
    parser.add_argument(
        "--sizes", type=command_line.decimals, default=SIZES, help="MiB, with commas"
    )
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--transport", default="auto", help="auto, shm, tcp or ipc")
    parser.add_argument("--in-request", action="store_true", help="no increment regions")
    read = parser.parse_args(words)
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", StabilityWarning)
    memory = f"{round(3 * max(read.sizes) + 64)}MiB"
    with smbox.local(memory=memory, transport=read.transport) as box:
        rows = [
            row
            for mib in read.sizes
            for row in measure(box, mib, read.rounds, in_request=read.in_request)
        ]
    if read.json:
        told = [asdict(row) | {"error": row.error, "saved": row.saved} for row in rows]
        print(json.dumps(told))
    else:
        print(table(rows))


if __name__ == "__main__":
    main()

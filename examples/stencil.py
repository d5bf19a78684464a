"""Heat in a plate: a 2-D stencil on several processes, whose halos travel by put with signal.

python examples/stencil.py

Each process holds a block of rows. In every step it puts its two edge rows into its neighbours'
halo rows and signals their counters, computes what needs no halo, waits for its own counters,
and computes the rest. No barrier, no receive. A process can be one step ahead of a neighbour,
not two: so two halo rows for each side are enough. The result equals the sequential one bit
for bit. With --address A,B the memory is that of several nodes, and the plate is striped.
"""

from __future__ import annotations

import argparse
import multiprocessing
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

import smbox

Plate = NDArray[np.float64]
ABOVE, BELOW = 0, 1


class Size(NamedTuple):
    processes: int
    rows: int
    columns: int
    steps: int

    def first_row(self, rank: int) -> int:
        """The first row of a rank's block; the plate's outermost rows and columns are fixed."""
        return 1 + (self.rows - 2) * rank // self.processes


def relaxed(plate: Plate) -> Plate:
    """The inner elements after a Jacobi step: the mean of their four neighbours."""
    across = plate[1:-1, :-2] + plate[1:-1, 2:]
    return 0.25 * (plate[:-2, 1:-1] + plate[2:, 1:-1] + across)


def sequential(plate: Plate, steps: int) -> Plate:
    for _ in range(steps):
        plate[1:-1, 1:-1] = relaxed(plate)
    return plate


class Halo:
    """The halo rows of all ranks, in one region, and a counter for each rank and side."""

    def __init__(self, box: smbox.Box, size: Size) -> None:
        self.rows = box.attach("halo")
        self.arrived = [
            [box.counter(f"arrived-{rank}-{side}") for side in (ABOVE, BELOW)]
            for rank in range(size.processes)
        ]

    def row(self, rank: int, side: int, step: int) -> smbox.Region:
        at = (2 * rank + side) * 2 + step % 2
        return self.rows[at : at + 1]

    def send(self, edge: Plate, rank: int, side: int, step: int) -> smbox.Handle[None]:
        """Put an edge row where a rank expects it; who sees the counter sees the row."""
        return self.row(rank, side, step).put_nb(edge, signal=self.arrived[rank][side])

    def wait(self, rank: int, side: int, step: int) -> Plate:
        """Wait for the row of a step; where this process maps it, it is not copied."""
        self.arrived[rank][side].wait(at_least=step + 1, timeout_s=60.0)
        row = self.row(rank, side, step)
        return row.local() if row.is_local else row.get()


def work(address: str, rank: int, size: Size) -> None:
    first, limit = size.first_row(rank), size.first_row(rank + 1)
    with smbox.connect(address) as box:
        plate, halo = box.attach("plate"), Halo(box, size)
        block = plate[first - 1 : limit + 1].get()  # with a row of each neighbour
        for step in range(size.steps):
            block = advanced(block, halo, rank, size, step)
        plate[first:limit].put(block[1:-1], signal=box.counter("done"))


def advanced(block: Plate, halo: Halo, rank: int, size: Size, step: int) -> Plate:
    sent = []
    if rank > 0:
        sent.append(halo.send(block[1:2], rank - 1, BELOW, step))
    if rank < size.processes - 1:
        sent.append(halo.send(block[-2:-1], rank + 1, ABOVE, step))
    new = block.copy()
    new[2:-2, 1:-1] = relaxed(block[1:-1])  # while the halos travel
    smbox.when_all(sent).wait()  # before this waits for others, who wait for these
    if rank > 0:
        block[:1] = halo.wait(rank, ABOVE, step)
    if rank < size.processes - 1:
        block[-1:] = halo.wait(rank, BELOW, step)
    new[1:2, 1:-1] = relaxed(block[:3])
    new[-2:-1, 1:-1] = relaxed(block[-3:])
    return new


def run(box: smbox.Box, size: Size) -> bool:
    """Run all processes; tell whether their plate is the sequential one."""
    plate = np.random.default_rng(1).standard_normal((size.rows, size.columns))
    regions = [
        box.create("plate", init=plate, layout="striped"),
        box.create("halo", (4 * size.processes, size.columns), "float64", layout="striped"),
    ]
    context = multiprocessing.get_context("spawn")
    workers = [
        context.Process(target=work, args=(box.address, rank, size))
        for rank in range(size.processes)
    ]
    for worker in workers:
        worker.start()
    wanted = sequential(plate, size.steps)
    box.counter("done").wait(at_least=size.processes, timeout_s=100.0)
    found = regions[0].get()
    for worker in workers:
        worker.join()
    counters = [counter for both in Halo(box, size).arrived for counter in both]
    for each in [*regions, *counters, box.counter("done")]:
        box.free(each)
    return bool(found.tobytes() == wanted.tobytes())


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--address", help="of running nodes, as for smbox.connect")
    parser.add_argument("--processes", type=int, default=3)
    parser.add_argument("--rows", type=int, default=130)
    parser.add_argument("--columns", type=int, default=300)
    parser.add_argument("--steps", type=int, default=50)
    given = parser.parse_args()
    if not 1 <= given.processes <= given.rows - 2:
        parser.error("each process needs a row of its own: --processes is 1 to --rows - 2")
    size = Size(given.processes, given.rows, given.columns, given.steps)
    opened = smbox.connect(given.address) if given.address else smbox.local(memory="256MiB")
    with opened as box:
        print(size, ": equal to the sequential result, bit for bit :", run(box, size))


if __name__ == "__main__":
    main()

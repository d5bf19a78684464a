"""The stencil of examples/stencil.py, timed: put with signal beside barriers and plain memory.

python benchmarks/stencil.py [--sizes 256,1024] [--processes 1,2,4] [--steps 200] [--json]

Every way computes the same steps of the same plate, and its result is compared with the
sequential one bit for bit. "shared memory, barrier" is the limit without a library: the plate
mapped by all processes, a barrier after each step, no copy of a halo. Ways take turns;
medians of the rounds. A second table times one put with its signal beside a put and an add.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import command_line
import numpy as np
from rich.console import Console
from rich.table import Table

import smbox
from smbox.cli.bench.measure import Clocks, interleave
from smbox.transports.zeromq import learn_large_blocks

EXAMPLE: Final = Path(__file__).parents[1] / "examples" / "stencil.py"
TRANSPORTS: Final = {"smbox, mapped": "shm", "smbox, tcp": "tcp"}
BARE: Final = "shared memory, barrier"
WAIT_S: Final = 120.0
ROW_NBYTES: Final = 16384


def _example() -> Any:
    told = importlib.util.spec_from_file_location("stencil_example", EXAMPLE)
    assert told is not None
    assert told.loader is not None
    module = importlib.util.module_from_spec(told)
    told.loader.exec_module(module)
    return module


stencil = _example()


def _at_smbox(
    settings: tuple[str, str], rank: int, size: tuple[int, ...], meet: Any, took: Any
) -> None:
    """Be one process of the example; tells its seconds."""
    address, transport = settings
    size_ = stencil.Size(*size)
    first, limit = size_.first_row(rank), size_.first_row(rank + 1)
    with smbox.connect(address, transport=transport, timeout_s=WAIT_S) as box:
        plate, halo = box.attach("plate"), stencil.Halo(box, size_)
        block = plate[first - 1 : limit + 1].get()
        meet.wait(WAIT_S)
        began_s = time.perf_counter()
        for step in range(size_.steps):
            block = stencil.advanced(block, halo, rank, size_, step)
        meet.wait(WAIT_S)
        took[rank] = time.perf_counter() - began_s
        plate[first:limit].put(block[1:-1])


def _at_barriers(
    settings: tuple[str, str], rank: int, size: tuple[int, ...], meet: Any, took: Any
) -> None:
    """Be one process of the bare way: two plates in turns, a barrier after each step."""
    size_ = stencil.Size(*size)
    first, limit = size_.first_row(rank), size_.first_row(rank + 1)
    learn_large_blocks()  # as smbox does: else numpy's temporaries cost page faults
    plates = np.memmap(settings[0], np.float64, "r+", shape=(2, size_.rows, size_.columns))
    meet.wait(WAIT_S)
    began_s = time.perf_counter()
    for step in range(size_.steps):
        old, new = plates[step % 2], plates[(step + 1) % 2]
        new[first:limit, 1:-1] = stencil.relaxed(old[first - 1 : limit + 1])
        meet.wait(WAIT_S)
    took[rank] = time.perf_counter() - began_s


def _all(work: Callable[..., None], settings: tuple[str, str], size: Any) -> float:
    """Run all processes of one way; returns the seconds of the slowest."""
    context = multiprocessing.get_context("spawn")
    meet, took = context.Barrier(size.processes), context.Array("d", size.processes)
    workers = [
        context.Process(target=work, args=(settings, rank, tuple(size), meet, took))
        for rank in range(size.processes)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
        if worker.exitcode:
            raise RuntimeError(f"a process failed ({worker.exitcode}); its words are above")
    return max(took)


def by_smbox(way: str, size: Any, plate: Any) -> tuple[float, Any]:
    """Run the example over one of TRANSPORTS; returns seconds and the plate."""
    with smbox.local(memory=f"{plate.nbytes // (1 << 20) + 256}MiB") as box:
        region = box.create("plate", init=plate)
        box.create("halo", (4 * size.processes, size.columns), "float64")
        seconds = _all(_at_smbox, (box.address, TRANSPORTS[way]), size)
        return seconds, region.get()


def by_barriers(size: Any, plate: Any) -> tuple[float, Any]:
    """Run the bare way; returns seconds and the plate."""
    with tempfile.NamedTemporaryFile(dir="/dev/shm", prefix="stencil-") as memory:
        plates = np.memmap(memory.name, np.float64, "w+", shape=(2, *plate.shape))
        plates[:] = plate
        seconds = _all(_at_barriers, (memory.name, ""), size)
        return seconds, plates[size.steps % 2].copy()


def steps(told: argparse.Namespace) -> list[dict[str, Any]]:
    """Time all ways; a row for each plate, number of processes and way.

    Returns:
        rows_and_columns, processes, way, and step_us: microseconds of a step, a median.

    Raises:
        RuntimeError: a result differs from the sequential one.
    """
    found = []
    learn_large_blocks()
    for edge in told.sizes:
        plate = np.random.default_rng(1).standard_normal((edge, edge))
        alone_s = []
        for _ in range(told.rounds):
            began_s = time.perf_counter()
            wanted = stencil.sequential(plate.copy(), told.steps).tobytes()
            alone_s.append(time.perf_counter() - began_s)
        alone = {"edge": edge, "processes": 1, "way": "sequential"}
        found.append(alone | {"step_us": statistics.median(alone_s) * 1e6 / told.steps})
        for processes in told.processes:
            size = stencil.Size(processes, edge, edge, told.steps)
            took: dict[str, list[float]] = {}
            for _ in range(told.rounds):
                for way in (BARE, *TRANSPORTS):
                    made = (
                        by_barriers(size, plate) if way == BARE else by_smbox(way, size, plate)
                    )
                    if made[1].tobytes() != wanted:
                        raise RuntimeError(f"{way}: not the sequential result")
                    took.setdefault(way, []).append(made[0])
            for way, seconds in took.items():
                row = {"edge": edge, "processes": processes, "way": way}
                found.append(row | {"step_us": statistics.median(seconds) * 1e6 / told.steps})
    return found


def signals(calls: int) -> list[dict[str, Any]]:
    """Time a put with signal beside a put and an add.

    Returns:
        way, together_us and apart_us: medians of a call and of two.
    """
    rows = []
    mine = np.zeros(ROW_NBYTES // 8)
    clocks = Clocks(time.perf_counter, lambda: 0.0)
    with smbox.local(memory="64MiB") as made:
        region, counter = made.create("row", mine.shape, "float64"), made.counter("arrived")
        for way, transport in TRANSPORTS.items():
            with smbox.connect(made.address, transport=transport) as box:
                region, counter = box.attach("row"), box.counter("arrived")

                def together(region: Any = region, counter: Any = counter) -> None:
                    region.put(mine, signal=counter)

                def apart(region: Any = region, counter: Any = counter) -> None:
                    region.put(mine)
                    counter.add()

                timings = interleave(
                    {"together": together, "apart": apart}, rounds=calls, clocks=clocks
                )
                row = {f"{name}_us": each.seconds * 1e6 for name, each in timings.items()}
                rows.append({"way": way} | row)
    return rows


def tables(found: dict[str, list[dict[str, Any]]]) -> list[Table]:
    """Lay out both tables."""
    first = Table("plate", "processes", "way", "us a step", "speed-up", title="steps")
    alone = {
        row["edge"]: row["step_us"] for row in found["steps"] if row["way"] == "sequential"
    }
    for row in found["steps"]:
        plate, speed_up = f"{row['edge']} x {row['edge']}", alone[row["edge"]] / row["step_us"]
        shown = [str(row["processes"]), row["way"], f"{row['step_us']:.0f}", f"{speed_up:.2f}"]
        first.add_row(plate, *shown)
    second = Table("way", "put with signal, us", "put and add, us", title="a row of 16 KiB")
    for row in found["signals"]:
        second.add_row(row["way"], f"{row['together_us']:.1f}", f"{row['apart_us']:.1f}")
    return [first, second]


def main(words: Sequence[str] | None = None) -> None:
    """Measure and print both tables, or JSON."""
    parser = command_line.parser(__doc__, "json")
    parser.add_argument(
        "--sizes",
        type=command_line.numbers,
        default="256,1024",
        help="rows and columns of the plates",
    )
    parser.add_argument(
        "--processes", type=command_line.numbers, default="1,2,4", help="numbers, with commas"
    )
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--calls", type=int, default=3000, help="of the second table")
    told = parser.parse_args(words)
    found = {"steps": steps(told), "signals": signals(told.calls)}
    if told.json:
        print(json.dumps(found, indent=1))
    else:
        for each in tables(found):
            Console().print(each)


if __name__ == "__main__":
    main()

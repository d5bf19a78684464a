"""Rows of small messages over tcp: round trips one by one, and many in one batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import numpy as np

from smbox.cli.bench.lab import Lab, ones
from smbox.cli.bench.result import Result, at_least, at_most

SMALL_NBYTES: Final = 4096
ROUND_TRIP_GOAL: Final = 1.3
BATCH_GOAL: Final = 10.0
BATCH_ITEMS: Final = 256
BLOCK: Final = 20  # round trips of one turn


def tcp_small(lab: Lab) -> Iterator[Result]:
    """Time 4 KiB puts and gets beside the same bytes in a bare ping-pong."""
    with lab.region(lab.remote, SMALL_NBYTES) as region:
        mine = ones(SMALL_NBYTES)
        raw = mine.view(np.uint8)
        pairs: dict[str, tuple[Callable[[], object], Callable[[], object]]] = {
            "put": (lambda: region.put(mine), lambda: lab.bare.put(raw)),
            "get": (lambda: region.get(out=mine), lambda: lab.bare.get(raw)),
        }
        for verb, (call, limit) in pairs.items():
            timings = lab.time(
                {"smbox": _block(call), "bare": _block(limit)},
                rounds=max(3, lab.scale.calls // BLOCK),
            )
            yield Result(
                row="tcp small",
                case=f"{verb} 4 KiB p50",
                figure=timings["smbox"].seconds / BLOCK * 1e6,
                unit="us",
                goal=at_most(ROUND_TRIP_GOAL),
                limit=timings["bare"].seconds / BLOCK * 1e6,
                limit_name="bare pyzmq ping-pong",
            )


def _block(call: Callable[[], object]) -> Callable[[], None]:
    def block() -> None:
        for _ in range(BLOCK):
            call()

    return block


def tcp_batch(lab: Lab) -> Iterator[Result]:
    """Compare many small changes in one batch with the same changes one by one."""
    elements = SMALL_NBYTES // 4
    with lab.region(lab.remote, SMALL_NBYTES * BATCH_ITEMS) as region:
        mine = ones(SMALL_NBYTES)
        parts = [region[i * elements : (i + 1) * elements] for i in range(BATCH_ITEMS)]

        def puts_one_by_one() -> None:
            for part in parts:
                part.put(mine)

        def puts_in_batch() -> None:
            with lab.remote.batch() as batch:
                for part in parts:
                    batch.put(part, mine)

        yield _batched(lab, "put 4 KiB", puts_in_batch, puts_one_by_one)

        tallies = [region[i * 16 : (i + 1) * 16] for i in range(BATCH_ITEMS)]
        step = ones(64)

        def tallies_one_by_one() -> None:
            for tally in tallies:
                tally.accumulate(step)

        def tallies_in_batch() -> None:
            with lab.remote.batch() as batch:
                for tally in tallies:
                    batch.accumulate(tally, step)

        yield _batched(lab, "accumulate 64 B", tallies_in_batch, tallies_one_by_one)


def _batched(
    lab: Lab, case: str, together: Callable[[], None], one_by_one: Callable[[], None]
) -> Result:
    timings = lab.time({"smbox": together, "single": one_by_one})
    return Result(
        row="tcp batch",
        case=f"{BATCH_ITEMS} x {case}",
        figure=BATCH_ITEMS / timings["smbox"].seconds,
        unit="op/s",
        goal=at_least(BATCH_GOAL),
        limit=BATCH_ITEMS / timings["single"].seconds,
        limit_name="one by one",
    )

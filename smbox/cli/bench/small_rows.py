"""Rows of small messages over tcp: round trips one by one, and many in one batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import numpy as np

from smbox.cli.bench.lab import Lab, ones
from smbox.cli.bench.result import Result, at_least, at_most
from smbox.region import Region

SMALL_NBYTES: Final = 4096
TALLY_NBYTES: Final = 64
ROUND_TRIP_GOAL: Final = 1.5
BATCH_GOAL: Final = 12.0
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
    with lab.region(lab.remote, SMALL_NBYTES * BATCH_ITEMS) as region:
        yield _batched(lab, region, "put", SMALL_NBYTES, "put 4 KiB")
        yield _batched(lab, region, "accumulate", TALLY_NBYTES, "accumulate 64 B")


def _batched(lab: Lab, region: Region, verb: str, nbytes: int, case: str) -> Result:
    mine = ones(nbytes)
    parts = [region[i * mine.size : (i + 1) * mine.size] for i in range(BATCH_ITEMS)]
    calls = [getattr(part, verb) for part in parts]

    def one_by_one() -> None:
        for call in calls:
            call(mine)

    def together() -> None:
        with lab.remote.batch() as batch:
            change = getattr(batch, verb)
            for part in parts:
                change(part, mine)

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

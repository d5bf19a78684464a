"""Rows over shared memory: one client against this machine's memory, and small calls."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from smbox.cli.bench.lab import Floats, Lab, ones
from smbox.cli.bench.measure import Timing, each_s, percentile
from smbox.cli.bench.result import GIGABYTE, Result, at_least, figure_at_most, size_name
from smbox.region import Region

MOVING_RATE: Final = 0.25
SMALL_NBYTES: Final = 4096
TURN_NBYTES: Final = 16 << 20
"""Bytes of a turn at least: a single short call would time the caches that a turn finds."""
SMALL_GOAL_US: Final = {"get": 2.0, "put": 3.0, "accumulate": 3.0, "elastic": 3.5}


@dataclass(frozen=True, slots=True)
class Verb:
    """A verb, the plain numpy call that is its limit, and its goals.

    Attributes:
        name: of the verb.
        call: does it with the worker's array.
        limit_name: of the numpy call.
        limit: does that from one array to another.
        locked: goal with consistency="stripe".
        unlocked: goal with consistency="none".
    """

    name: str
    call: Callable[[Region, Floats], Any]
    limit_name: str
    limit: Callable[[Floats, Floats], Any]
    locked: float
    unlocked: float


def _add(target: Floats, source: Floats) -> None:
    np.add(target, source, out=target)


def _elastic(region: Region, mine: Floats) -> None:
    region.elastic(mine, MOVING_RATE)


VERBS: Final = (
    Verb("put", Region.put, "np.copyto", np.copyto, 0.8, 0.95),
    Verb("accumulate", Region.accumulate, "np.add in place", _add, 0.8, 0.9),
    Verb("elastic", _elastic, "np.copyto", np.copyto, 0.75, 0.8),
)


def rate_result(
    row: str, case: str, nbytes: int, timings: dict[str, Timing], goal: float, limit_name: str
) -> Result:
    """Make the result of a transfer timed as ``"smbox"`` beside ``"limit"``."""
    smbox, limit = timings["smbox"], timings["limit"]
    return Result(
        row=row,
        case=case,
        figure=nbytes / smbox.seconds / GIGABYTE,
        unit="GB/s",
        goal=at_least(goal),
        limit=nbytes / limit.seconds / GIGABYTE,
        limit_name=limit_name,
        cpu_s_per_gb=smbox.cpu_s * GIGABYTE / nbytes,
    )


def local_get(lab: Lab) -> Iterator[Result]:
    """Read whole regions of several sizes into an array."""
    for nbytes in lab.scale.sizes:
        with lab.region(lab.local, nbytes) as region:
            out, source = ones(nbytes), ones(nbytes)
            timings = lab.time(
                {
                    "smbox": lambda: region.get(out=out),  # noqa: B023 - called in this turn
                    "limit": lambda: np.copyto(out, source),  # noqa: B023
                },
                repeats=max(1, TURN_NBYTES // nbytes),
            )
        yield rate_result("local get", size_name(nbytes), nbytes, timings, 0.95, "np.copyto")


def local_changes(lab: Lab) -> Iterator[Result]:
    """Change a whole region, journaled."""
    for verb in VERBS:
        yield _change(lab, verb, "stripe", verb.name, verb.locked)


def local_unlocked(lab: Lab) -> Iterator[Result]:
    """Change a whole region of consistency="none" (Hogwild)."""
    for verb in VERBS:
        yield _change(lab, verb, "none", verb.name, verb.unlocked)


def _change(lab: Lab, verb: Verb, consistency: str, case: str, goal: float) -> Result:
    nbytes = lab.scale.big_nbytes
    row = "local change" if consistency == "stripe" else "local unlocked"
    with lab.region(lab.local, nbytes, consistency) as region:
        mine, target = ones(nbytes), ones(nbytes)
        timings = lab.time(
            {
                "smbox": lambda: verb.call(region, mine),
                "limit": lambda: verb.limit(target, mine),
            }
        )
    case = f"{case} {size_name(nbytes)}"
    return rate_result(row, case, nbytes, timings, goal, verb.limit_name)


def local_small(lab: Lab) -> Iterator[Result]:
    """Time 4 KiB calls one by one."""
    with lab.region(lab.local, SMALL_NBYTES) as region:
        mine, other = ones(SMALL_NBYTES), ones(SMALL_NBYTES)
        calls: dict[str, Callable[[], object]] = {
            "get": lambda: region.get(out=mine),
            "put": lambda: region.put(mine),
            "accumulate": lambda: region.accumulate(mine),
            "elastic": lambda: region.elastic(mine, MOVING_RATE),
        }
        for verb, call in calls.items():
            each_s(call, count=lab.scale.calls // 10, now_s=time.perf_counter)
            samples = each_s(call, count=lab.scale.calls, now_s=time.perf_counter)
            plain = each_s(
                lambda: np.copyto(mine, other), count=lab.scale.calls, now_s=time.perf_counter
            )
            yield Result(
                row="local small",
                case=f"{verb} 4 KiB p50",
                figure=percentile(samples, 50) * 1e6,
                unit="us",
                goal=figure_at_most(SMALL_GOAL_US[verb]),
                limit=percentile(plain, 50) * 1e6,
                limit_name="np.copyto",
            )

"""Rows over tcp on this host: one client against bare ZeroMQ and a raw TCP stream."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import numpy as np

from smbox.cli.bench.lab import Lab, ones
from smbox.cli.bench.limits import CALL_NBYTES, Bytes
from smbox.cli.bench.local_rows import MOVING_RATE
from smbox.cli.bench.measure import Timing
from smbox.cli.bench.result import GIGABYTE, Result, at_least, size_name
from smbox.dtypes import by_name
from smbox.region import Region

NARROW_GOAL: Final = 1.5
ZMQ_GOAL: Final = {"get": 0.75, "put": 0.8, "accumulate": 0.9, "elastic": 0.8}
STREAM_GOAL: Final = {"get": 0.5, "put": 0.5, "accumulate": 0.45}

Calls = dict[str, Callable[[], object]]


def tcp_transfers(lab: Lab) -> Iterator[Result]:
    """Move a whole region each way, and add to it."""
    for nbytes in (lab.scale.big_nbytes, lab.scale.huge_nbytes):
        with lab.region(lab.remote, nbytes) as region:
            for verb in STREAM_GOAL:
                timings = lab.time(
                    _calls(lab, region, verb, nbytes), rounds=_rounds(lab, nbytes)
                )
                yield from _results(verb, nbytes, timings)


def _rounds(lab: Lab, nbytes: int) -> int:
    """Return fewer rounds for the largest size: each takes five transfers of it."""
    return lab.scale.rounds if nbytes < lab.scale.huge_nbytes else max(2, lab.scale.rounds // 2)


def _calls(lab: Lab, region: Region, verb: str, nbytes: int) -> Calls:
    mine = ones(nbytes)
    raw = mine.view(np.uint8)
    if verb == "get":
        calls: Calls = {
            "smbox": lambda: region.get(out=mine),
            "bare": lambda: lab.bare.get(raw),
        }
        return calls | {str(size): _stream(lab.stream.get, raw, size) for size in CALL_NBYTES}
    calls = {
        "smbox": lambda: region.put(mine) if verb == "put" else region.accumulate(mine),
        "bare": lambda: lab.bare.put(raw),
    }
    return calls | {str(size): _stream(lab.stream.put, raw, size) for size in CALL_NBYTES}


def _stream(
    move: Callable[[Bytes, int], None], raw: Bytes, call_nbytes: int
) -> Callable[[], None]:
    return lambda: move(raw, call_nbytes)


def _results(verb: str, nbytes: int, timings: dict[str, Timing]) -> Iterator[Result]:
    smbox = timings["smbox"]
    best = min((timings[str(size)].seconds, size) for size in CALL_NBYTES)
    limits = {
        "bare pyzmq": (timings["bare"].seconds, ZMQ_GOAL[verb]),
        f"raw TCP, {best[1] // 1024}K calls": (best[0], STREAM_GOAL[verb]),
    }
    for name, (seconds, goal) in limits.items():
        yield Result(
            row="tcp transfer",
            case=f"{verb} {size_name(nbytes)}",
            figure=nbytes / smbox.seconds / GIGABYTE,
            unit="GB/s",
            goal=at_least(goal),
            limit=nbytes / seconds / GIGABYTE,
            limit_name=name,
            cpu_s_per_gb=smbox.cpu_s * GIGABYTE / nbytes,
        )


def tcp_elastic(lab: Lab) -> Iterator[Result]:
    """Exchange a whole region elastically: both directions of the wire are busy."""
    nbytes = lab.scale.big_nbytes
    with lab.region(lab.remote, nbytes) as region:
        mine = ones(nbytes)
        raw = mine.view(np.uint8)
        timings = lab.time(
            {
                "smbox": lambda: region.elastic(mine, MOVING_RATE),
                "bare": lambda: lab.bare.exchange(raw, raw),
            }
        )
    smbox, bare = timings["smbox"], timings["bare"]
    yield Result(
        row="tcp elastic",
        case=size_name(nbytes),
        figure=nbytes / smbox.seconds / GIGABYTE,
        unit="GB/s",
        goal=at_least(ZMQ_GOAL["elastic"]),
        limit=nbytes / bare.seconds / GIGABYTE,
        limit_name="bare pyzmq both ways",
        cpu_s_per_gb=smbox.cpu_s * GIGABYTE / nbytes,
    )


def tcp_narrow(lab: Lab) -> Iterator[Result]:
    """Exchange the same elements as bfloat16 and as float32, with a region of float32."""
    nbytes = lab.scale.big_nbytes
    wide = ones(nbytes)
    narrow = wide.astype(by_name("bfloat16").numpy)
    with lab.region(lab.remote, nbytes) as region:
        timings = lab.time(
            {
                "narrow": lambda: region.elastic(narrow, MOVING_RATE),
                "wide": lambda: region.elastic(wide, MOVING_RATE),
            }
        )
    yield Result(
        row="tcp narrow",
        case=f"elastic {wide.size >> 20} Mi elements, bfloat16",
        figure=wide.size / timings["narrow"].seconds / 1e6,
        unit="M/s",
        goal=at_least(NARROW_GOAL),
        limit=wide.size / timings["wide"].seconds / 1e6,
        limit_name="float32",
    )

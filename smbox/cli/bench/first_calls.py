"""A new client process of the benchmark: it measures its first calls.

Run as ``python -m smbox.cli.bench.first_calls ADDRESS TRANSPORT ZMQ_PORT CALLS``. It prints a
line of JSON, a ``FirstCalls``; nothing was imported or compiled for it before.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from smbox.connecting import connect

NBYTES: Final = 4096


class FirstCalls(msgspec.Struct):
    """What a fresh process met.

    Attributes:
        slowest_s: the slowest call of each verb, in seconds.
        bare_s: the slowest of as many calls without smbox.
    """

    slowest_s: dict[str, float]
    bare_s: float


def slowest_s(call: Callable[[], object], calls: int) -> float:
    """Return how long the slowest of so many calls took, in seconds; the first one counts."""
    slowest, now_s = 0.0, time.perf_counter
    for _ in range(calls):
        before = now_s()
        call()
        slowest = max(slowest, now_s() - before)
    return slowest


def main(address: str, transport: str, zmq_port: int, calls: int) -> None:
    """Call each verb so often, and then the same bytes without smbox."""
    x = np.ones(NBYTES // 4, np.float32)
    out = x.copy()
    name = f"first-{time.monotonic_ns():x}"
    with connect(address, transport=transport) as box:
        region = box.create(name, shape=x.shape, dtype="float32")
        found = {
            "get": slowest_s(lambda: region.get(out=out), calls),
            "put": slowest_s(lambda: region.put(x), calls),
            "accumulate": slowest_s(lambda: region.accumulate(x), calls),
            "elastic": slowest_s(lambda: region.elastic(out, 0.1), calls),
        }
        box.free(region)
    bare_s = _bare_s(transport, zmq_port, x, calls)
    print(msgspec.json.encode(FirstCalls(found, bare_s)).decode(), flush=True)


def _bare_s(transport: str, zmq_port: int, x: NDArray[Any], calls: int) -> float:
    if transport == "shm":
        out = x.copy()
        return slowest_s(lambda: np.copyto(out, x), calls)
    from smbox.cli.bench.limits import BareZmq  # noqa: PLC0415 - after what is measured

    with contextlib.closing(BareZmq(zmq_port)) as bare:
        return slowest_s(lambda: bare.put(x.view(np.uint8)), calls)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))

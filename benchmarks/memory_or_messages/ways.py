"""Ways to put, get, accumulate and exchange in this process: smbox, and what is beside it.

Every way has ``seconds(verb, nbytes, repeats)``: the mean time of a call, in seconds. N is the
size of the largest operand; all arrays are ``f32[N]``, written before they are timed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

import smbox
from memory_or_messages.programs import started
from memory_or_messages.rows import Verb
from smbox.cli.bench.limits import RawStream

MOVING_RATE: Final = 0.1
CALL_NBYTES: Final = 512 << 10
"""Of a call of the raw stream: the best, or near it, of those that ``smbox bench`` tries."""
TIMEOUT_S: Final = 120.0

Floats = NDArray[np.float32]


class Way(Protocol):
    """One way to do what the verbs do.

    Attributes:
        name: of the way, for tables.
    """

    name: str

    def seconds(self, verb: Verb, nbytes: int, repeats: int) -> float:
        """Call the verb so often; return the mean time of a call in seconds."""


def mean_s(call: Callable[[], object], repeats: int) -> float:
    """Return the mean time of a call, in seconds."""
    began_s = time.perf_counter()
    for _ in range(repeats):
        call()
    return (time.perf_counter() - began_s) / repeats


class Numpy:
    """What the verbs do to memory, by numpy between arrays of this process.

    Args:
        size: of the largest operand.
    """

    name = "numpy"

    def __init__(self, size: int) -> None:
        self._x, self._c = np.ones(size, np.float32), np.ones(size, np.float32)
        self._d = np.ones(size, np.float32)

    def seconds(self, verb: Verb, nbytes: int, repeats: int) -> float:
        """See Way."""
        x, c, d = (each[: nbytes // 4] for each in (self._x, self._c, self._d))
        calls: dict[str, Callable[[], object]] = {
            "put": lambda: np.copyto(c, x),
            "get": lambda: np.copyto(x, c),
            "accumulate": lambda: np.add(c, x, out=c),
            "elastic": lambda: move(x, c, d),
        }
        return mean_s(calls[verb], repeats)


def move(x: Floats, c: Floats, d: Floats) -> None:
    """Do an elastic exchange: d = rate (x - c); c += d; x -= d."""
    pull(x, c, d)
    np.subtract(x, d, out=x)


def pull(x: Floats, c: Floats, d: Floats) -> None:
    """Do the memory's part of it: d = rate (x - c); c += d."""
    np.subtract(x, c, out=d)
    np.multiply(d, np.float32(MOVING_RATE), out=d)
    np.add(c, d, out=c)


class Raw:
    """As many bytes over raw TCP streams, and nothing else: a limit.

    An accumulate sends what a put sends; an elastic exchange sends and receives at once, on two
    connections.

    Args:
        size: of the largest operand.
        ports: of two peers on this host.
    """

    name = "raw tcp"

    def __init__(self, size: int, ports: list[int]) -> None:
        self._source, self._target = np.ones(4 * size, np.uint8), np.ones(4 * size, np.uint8)
        self._one, self._other = (RawStream(port) for port in ports)
        self._pool = ThreadPoolExecutor(1)

    def seconds(self, verb: Verb, nbytes: int, repeats: int) -> float:
        """See Way."""
        source, target = self._source[:nbytes], self._target[:nbytes]

        def both() -> None:
            back = self._pool.submit(self._other.get, target, CALL_NBYTES)
            self._one.put(source, CALL_NBYTES)
            back.result()

        calls: dict[str, Callable[[], object]] = {
            "put": lambda: self._one.put(source, CALL_NBYTES),
            "get": lambda: self._one.get(target, CALL_NBYTES),
            "elastic": both,
        }
        return mean_s(calls.get(verb, calls["put"]), repeats)

    def close(self) -> None:
        """Close the connections."""
        self._pool.shutdown()
        self._one.close()
        self._other.close()


class Smbox:
    """The memory interface: the verbs of a region.

    Args:
        name: of the way.
        region: ``f32[N]``.
    """

    def __init__(self, name: str, region: Any) -> None:
        self.name = name
        self._region = region
        self._x = np.ones(region.shape[0], np.float32)

    def seconds(self, verb: Verb, nbytes: int, repeats: int) -> float:
        """See Way."""
        x, target = self._x[: nbytes // 4], self._region[: nbytes // 4]
        calls: dict[str, Callable[[], object]] = {
            "put": lambda: target.put(x),
            "get": lambda: target.get(out=x),
            "accumulate": lambda: target.accumulate(x),
            "elastic": lambda: target.elastic(x, MOVING_RATE),
        }
        return mean_s(calls[verb], repeats)


@contextmanager
def local_ways(nbytes: int) -> Iterator[list[Way]]:
    """Open smbox on mapped memory and over tcp, and the two limits, for operands so large."""
    size = nbytes // 4
    peer = ["-m", "smbox.cli.bench.peer"]
    memory = f"{(nbytes >> 20) + 256}MiB"
    with smbox.local(memory=memory, timeout_s=TIMEOUT_S) as box, started(peer) as one:
        region = box.create("x", shape=size, init=1.0)
        with (
            started(peer) as other,
            smbox.connect(box.address, transport="tcp", timeout_s=TIMEOUT_S) as remote,
        ):
            raw = Raw(size, [one["tcp_port"], other["tcp_port"]])
            try:
                yield [
                    Numpy(size),
                    Smbox("smbox, memory", region),
                    raw,
                    Smbox("smbox, tcp", remote.attach("x")),
                ]
            finally:
                raw.close()

"""A put with a signal: once all of it is there, a counter grows by one.

So whoever reads the new value of the counter, and then the region, finds what was put. Where
both lie in one memory, put and signal are one request of one path; else the signal is sent
when the put is acknowledged. Compare OpenSHMEM 1.5, ``shmem_put_signal``.
"""

from __future__ import annotations

import numpy as np

from smbox.array import as_bytes
from smbox.chaining import InTurn
from smbox.handle import Handle
from smbox.memory.kernels import KernelCode
from smbox.paths import requests
from smbox.paths.pair import PathPair
from smbox.paths.work import Operation, Work
from smbox.sync import INT64, Counter


def put(
    paths: PathPair, operation: Operation, signal: Counter, timeout_s: float | None
) -> None:
    """Do a put with a signal, as a blocking verb does."""
    _put(paths, operation, signal).finish(timeout_s)


def put_nb(paths: PathPair, operation: Operation, signal: Counter | None) -> Handle[None]:
    """Begin a put, with a signal or without."""
    if signal is None:
        return requests.change_nb(paths, operation, requests.nothing)
    return begin(paths, _put(paths, operation, signal))


def begin(paths: PathPair, handle: Handle[None]) -> Handle[None]:
    """Begin a request; one that waits for another is kept for ``flush`` until it is done."""
    handle.begin()
    if isinstance(handle.work, InTurn) and not handle.work.is_done:
        paths.following.add(handle.work)
    return handle


def behind(put: Handle[None], signal: Counter) -> Handle[None]:
    """Describe a put that is not begun, and a signal that is sent once it has succeeded."""
    _checked(signal)

    def change() -> Work:
        return signal.paths.data(signal.info).change(_operation(signal))

    work = InTurn(put.work, change)
    return Handle("put", work, requests.nothing, put.timeout_s)


def _put(paths: PathPair, operation: Operation, signal: Counter) -> Handle[None]:
    is_together = _checked(signal).info.node_uuid == operation.info.node_uuid
    if is_together and operation.first < operation.limit:
        work = paths.data(operation.info).change(operation, _operation(signal))
        return Handle("put", work, requests.nothing, paths.timeout_s)
    work = requests.work_of(paths, operation)
    return behind(Handle("put", work, requests.nothing, paths.timeout_s), signal)


def _checked(signal: object) -> Counter:
    """Return what may be a signal.

    Raises:
        TypeError: no counter.
        ConfigError, PeerLostError: its box is closed, or its memory is gone.
    """
    if not isinstance(signal, Counter):
        raise TypeError(f"a signal is a counter, not {type(signal).__name__}")
    signal.paths.data(signal.info)
    return signal


def _operation(counter: Counter) -> Operation:
    one = as_bytes(np.ones((), INT64.numpy))
    info = counter.info
    return Operation(info, "signal", KernelCode.SUM, 1, 0, info.nbytes, one)

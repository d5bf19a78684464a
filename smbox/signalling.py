"""A put with a signal: once all of it is there, a counter grows by one.

So whoever reads the new value of the counter, and then the region, finds what was put. Where
both lie in one memory, put and signal are one request of one path. Else the signal is a request
of its own, begun when the put is acknowledged; and ``put_nb`` waits for both, because no thread
of smbox's would begin the signal while the caller's waits for somebody else. Compare
OpenSHMEM's ``shmem_put_signal``.
"""

from __future__ import annotations

from functools import partial

import numpy as np
from msgspec.structs import astuple

from smbox.combining import InTurn
from smbox.handle import Handle
from smbox.memory.kernels import KernelCode
from smbox.paths.pair import PathPair, no_result
from smbox.paths.work import Operation, Signalled
from smbox.sync import INT64, Counter


def put(
    paths: PathPair, operation: Operation, signal: Counter, timeout_s: float | None
) -> None:
    """Do a put with a signal, as a blocking verb does."""
    paths.seconds(timeout_s)  # before anything is done
    _put(paths, operation, signal).finish(timeout_s)


def put_nb(paths: PathPair, operation: Operation, signal: Counter | None) -> Handle[None]:
    """Begin a put, with a signal or without.

    A put and its signal in turn are waited for; what fails raises what a put raises.
    """
    if signal is None:
        return paths.begin(operation)
    handle = _put(paths, operation, signal)
    if isinstance(handle.work, InTurn):
        handle.finish()
        return handle
    return handle.begin()


def _put(paths: PathPair, operation: Operation, signal: Counter) -> Handle[None]:
    """Describe a put, and a signal that is begun once it has succeeded."""
    is_together = _checked(signal).info.node_uuid == operation.info.node_uuid
    if is_together and operation.first < operation.limit:
        work = paths.work_of(Signalled(*astuple(operation), signal=_operation(signal)))
    else:
        change = partial(signal.paths.work_of, _operation(signal))
        work = InTurn(paths.work_of(operation), change)
    return Handle("put", work, no_result, paths.timeout_s)


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
    one = np.ones((), INT64.numpy)
    info = counter.info
    return Operation(info, "signal", KernelCode.SUM, 1, 0, info.nbytes, one)

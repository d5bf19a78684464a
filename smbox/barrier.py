"""Barriers: parties meet in the words of a region; the last one to arrive opens it.

Words: generation, how many have arrived, parties, then who has arrived. An arrival names a
random member id, so it can be taken back, and counts once however often it is sent.
"""

from __future__ import annotations

import operator
import secrets
import time
from typing import Final

import numpy as np
from numpy.typing import NDArray

from smbox import dtypes
from smbox.array import as_bytes
from smbox.errors import ConfigError, LayoutMismatchError, RequestTimeoutError, SmboxError
from smbox.handle import Handle
from smbox.memory.kernels import BarrierWord, KernelCode
from smbox.memory.layout import STRIPE_NBYTES, WORD_NBYTES, Consistency, RegionKind
from smbox.paths import creating, requests
from smbox.paths.base import CreateRequest, Operation, RegionInfo
from smbox.paths.control import ANSWER_MIN_S
from smbox.paths.pair import PathPair
from smbox.paths.sinks import OldSink

WITHDRAW_TIMEOUT_S: Final = 5.0
PARTIES_MAX: Final = STRIPE_NBYTES // WORD_NBYTES - BarrierWord.MEMBERS
_NEVER: Final = 1 << 64  # no generation reaches it


def words_of(parties: int) -> NDArray[np.uint64]:
    """Return the words of a fresh barrier, ``u64[3 + parties]``."""
    words = np.zeros(BarrierWord.MEMBERS + parties, np.uint64)
    words[BarrierWord.PARTIES] = parties
    return words


def find(
    paths: PathPair, name: str, parties: int, timeout_s: float | None = None
) -> RegionInfo:
    """Return the barrier ``name``, or create it.

    Raises:
        ConfigError: no parties, or more than one stripe has words for.
        LayoutMismatchError: it is there, for another number of parties.
    """
    if not 1 <= operator.index(parties) <= PARTIES_MAX:
        raise ConfigError(f"a barrier has 1 to {PARTIES_MAX} parties", parties=parties)
    words = words_of(parties)
    dtype = dtypes.of(words.dtype)
    request = CreateRequest(
        name, RegionKind.BARRIER, dtype, words.shape, Consistency.STRIPE, exist_ok=True
    )
    try:
        wanted_s = max(paths.seconds(timeout_s), ANSWER_MIN_S)
        return creating.create(paths, request, words, wanted_s)
    except LayoutMismatchError as error:
        raise LayoutMismatchError(
            "the barrier has another number of parties", barrier=name, given=parties
        ) from error


def meet(paths: PathPair, info: RegionInfo, timeout_s: float | None) -> int:
    """Arrive and wait until all parties have; a timeout or interrupt takes the arrival back.

    Returns:
        The generation that this meeting ended: 0 for the first.

    Raises:
        RequestTimeoutError: the others did not come in time, and this arrival is undone.
        RegionFreedError: the barrier was freed meanwhile.
    """
    wanted_s = paths.seconds(timeout_s)
    deadline_s = requests.deadline_of(wanted_s)
    member = secrets.randbits(64)
    generation = _NEVER
    try:
        generation = _generation(_run(paths, info, KernelCode.ARRIVE, member, wanted_s))
        _wait_beyond(paths, info, generation, deadline_s)
    except RequestTimeoutError as error:
        found = _withdraw(paths, info, member)
        if generation == _NEVER:
            generation = _arrived_at(error)
        if found is not None and _generation(found) > generation:
            return generation  # the last party came between the timeout and the taking back
        raise _timeout(info, wanted_s, found) from error
    except BaseException:
        _withdraw(paths, info, member)
        raise
    return generation


def _wait_beyond(paths: PathPair, info: RegionInfo, generation: int, deadline_s: float) -> None:
    words = np.empty(info.shape, np.uint64)
    while True:
        version = paths.data(info).version(info, requests.look_s(deadline_s))
        look_s = requests.look_s(deadline_s)
        requests.read(paths, info, 0, info.nbytes, as_bytes(words), look_s)
        if _generation(words) > generation:
            return
        left_s = max(0.0, deadline_s - time.monotonic())
        requests.wait_version(paths, info, version + 1, left_s, op="barrier")


def _run(
    paths: PathPair, info: RegionInfo, kernel: KernelCode, member: int, timeout_s: float
) -> NDArray[np.uint64]:
    """Run a barrier kernel; return the words from before."""
    source = np.array([member], np.uint64)
    old = np.empty(info.shape, np.uint64)
    sink = OldSink(0, as_bytes(old))
    operation = Operation(
        info, "barrier", kernel, 1, 0, info.nbytes, as_bytes(source), sink=sink
    )
    arrival = requests.change_nb(paths, operation, lambda: old)  # its arrays are our own
    arrival.wait(timeout_s)
    return arrival.result()


def _withdraw(paths: PathPair, info: RegionInfo, member: int) -> NDArray[np.uint64] | None:
    """Take an arrival back; the words from before, or None if that could not be done."""
    try:
        return _run(paths, info, KernelCode.WITHDRAW, member, WITHDRAW_TIMEOUT_S)
    except SmboxError:
        return None


def _arrived_at(error: RequestTimeoutError) -> int:
    """Return the generation at which an arrival that was not done in time came after all.

    It was sent before its withdrawal, and may have opened the barrier for all.
    """
    arrival = error.handle
    if not isinstance(arrival, Handle) or not arrival.done():
        return _NEVER
    try:
        return _generation(arrival.result())
    except SmboxError:
        return _NEVER


def _timeout(
    info: RegionInfo, timeout_s: float, found: NDArray[np.uint64] | None
) -> RequestTimeoutError:
    if found is None:
        return RequestTimeoutError(
            "the barrier did not open in time, and this arrival may still count",
            op="barrier",
            barrier=info.name,
            timeout_s=timeout_s,
            outcome="unknown",
        )
    return RequestTimeoutError(
        "the barrier did not open in time; this arrival was taken back",
        op="barrier",
        barrier=info.name,
        timeout_s=timeout_s,
        outcome="none",
        arrived=int(found[BarrierWord.ARRIVED]),
        parties=int(found[BarrierWord.PARTIES]),
    )


def _generation(words: NDArray[np.uint64]) -> int:
    return int(words[BarrierWord.GENERATION])

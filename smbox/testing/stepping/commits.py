"""Steps through commits, and through the recovery after a kill at any instruction."""

from __future__ import annotations

import ctypes
import random
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import numpy as np

from smbox.memory.commit import StripeBusy, recover_stripe
from smbox.memory.layout import PAGE_NBYTES, Consistency, RegionHeader, Stripe, data_offset
from smbox.memory.locks import LockFile
from smbox.memory.node_memory import NodeMemory
from smbox.memory.reading import Reader
from smbox.memory.superblock import unlink_all
from smbox.native import library
from smbox.testing.stepping import case_memory, small_memory
from smbox.testing.stepping.case_memory import commits_in, examine, open_case, slot_of
from smbox.testing.stepping.cases import Case, State, replay
from smbox.testing.stepping.small_memory import MEMORY_NBYTES, MappedMemory
from smbox.testing.stepping.tracee import Tracee, stop_for_parent

RECOVERY_SHARE: Final = 0.05
"""Share of the crashed memories whose recovery is stepped too."""


def address_of(function: str) -> int:
    """Return the address of a function of the native library."""
    found = ctypes.cast(getattr(library.load().short, function), ctypes.c_void_p).value
    assert found is not None
    return found


def levels() -> list[int]:
    """Return the levels of kernels of this processor."""
    highest = library.load().short.smbox_level(1)
    return list(range(highest + 1))


def step_commits(case: Case, level: int, share: float, rng: random.Random) -> Counter[str]:
    """Step through a case; check every memory that a kill could leave, or a sample.

    Args:
        case: the native call.
        level: of the processor's kernels.
        share: share of the memories that are recovered and compared, beside all those in
            which a word has changed: the order of these stores makes a commit exact.
        rng: chooses them.

    Returns:
        Counts of what was done.
    """
    states, count = replay(case), Counter[str]()
    assert library.load().short.smbox_level(level) == level

    with open_case(case) as node:
        with _committing(case, node) as child:
            _walk(case, states, node, child, count, share, rng)
        mapped = MappedMemory(node)
        examine_copy(case, states, mapped.contents(), node)
        mapped.close()
    return count


def step_lock_free(case: Case) -> Counter[str]:
    """Count a commit of another writer after each instruction of a lock-free one."""
    count = Counter[str]()
    with open_case(case) as node:
        region = case_memory.attach_region(node, 0)
        region.words[RegionHeader.CONSISTENCY] = Consistency.NONE
        with _committing(case, node) as child:
            while child.step():
                region.table[0, Stripe.SEQUENCE] += np.uint64(1 << Stripe.COMMITS_SHIFT)
                count["commits of others"] += 1
        assert region.version() == count["commits of others"] + 1, "a commit is not counted"
    return count


@contextmanager
def _committing(case: Case, node: str) -> Iterator[Tracee]:
    """Yield a child at the first instruction of its native call; check that the call ends."""

    def commit() -> None:
        memory = NodeMemory.open(node, MEMORY_NBYTES)
        call = case_memory.prepare(case, memory)
        stop_for_parent()
        call.run()
        call.check()

    with Tracee(commit) as child:
        assert child.is_stopped, "the child ended before its commit"
        assert child.run_to(address_of("smbox_commit"))
        yield child
        assert not child.run_to(address_of("smbox_commit"))
        assert child.exit_code == 0


def _walk(
    case: Case,
    states: list[State],
    node: str,
    child: Tracee,
    count: Counter[str],
    share: float,
    rng: random.Random,
) -> None:
    mapped = MappedMemory(node)
    before, commits = mapped.contents(), 0
    reader = LiveReader(node, len(case.regions))
    try:
        while child.step():
            count["instructions"] += 1
            contents = mapped.contents()
            if contents == before:
                continue
            is_word = _words_of(contents) != _words_of(before)
            before = contents
            count["memories"] += 1
            now = commits_in(slot_of(contents))
            assert now in {commits, commits + 1}, f"{now} commits after {commits}"
            commits = now
            if not is_word and rng.random() >= share:
                continue
            reader.check(states[commits : commits + 2])
            examine_copy(case, states, contents, node)
            count["recoveries"] += 1
            if rng.random() < RECOVERY_SHARE and case_memory.is_open(contents):
                count["stepped recoveries"] += 1
                count["recoveries"] += step_recovery(case, states, contents, node)
        assert commits == len(states) - 1, f"only {commits} commits happened"
    finally:
        reader.close()
        mapped.close()


def _words_of(contents: dict[str, bytes]) -> list[bytes]:
    """Return the beginning of each segment, before old bytes, answers or a region's data."""
    return [
        data[: data_offset(1) if ".region." in name else PAGE_NBYTES]
        for name, data in contents.items()
    ]


def examine_copy(
    case: Case, states: list[State], contents: dict[str, bytes], node: str
) -> None:
    """Recover and compare a copy of a crashed memory."""
    copy = f"{node}x"
    small_memory.restore(contents, node, copy)
    examine(case, states, copy, commits_in(slot_of(contents)))


def step_recovery(
    case: Case, states: list[State], contents: dict[str, bytes], node: str
) -> int:
    """Kill a recoverer after each of its instructions; recover and compare the memory.

    Returns:
        The number of memories that were examined.
    """
    copy, examined = f"{node}r", 0
    small_memory.restore(contents, node, copy)
    mapped = MappedMemory(copy)
    with Tracee(lambda: _recover(case, copy)) as child:
        assert child.is_stopped
        while child.run_to(address_of("smbox_recover")):
            before = mapped.contents()
            while child.step():
                now = mapped.contents()
                if now != before:
                    examine_copy(case, states, now, copy)
                    before, examined = now, examined + 1
        assert child.exit_code == 0
    assert examined, "the recoverer changed nothing"
    examine_copy(case, states, mapped.contents(), copy)
    mapped.close()
    unlink_all(copy)
    return examined


def _recover(case: Case, node: str) -> None:
    regions = [case_memory.attach_region(node, index) for index in range(len(case.regions))]
    locks = LockFile(node)
    stop_for_parent()
    for region in regions:
        for stripe in range(-(-region.nbytes // small_memory.STRIPE_NBYTES)):
            if int(region.table[stripe, Stripe.SEQUENCE]) & Stripe.OPEN:
                recover_stripe(region, stripe, locks)


class LiveReader:
    """Reads the memory while the child is stopped within its commit.

    Args:
        node: name of the memory node.
        count: number of its regions.
    """

    def __init__(self, node: str, count: int) -> None:
        self._regions = [case_memory.attach_region(node, index) for index in range(count)]
        self._locks = LockFile(node)
        self._reader = Reader(self._locks)

    def check(self, allowed: list[State]) -> None:
        """Raise AssertionError unless each stripe is locked, or as in one of these states."""
        for index, region in enumerate(self._regions):
            for first in range(0, region.nbytes, small_memory.STRIPE_NBYTES):
                limit = min(first + small_memory.STRIPE_NBYTES, region.nbytes)
                out = region.data[first:limit].copy()
                try:
                    self._reader.read(region, first, limit, out)
                except StripeBusy:
                    continue
                expected = {
                    state.data[index].view("u1")[first:limit].tobytes() for state in allowed
                }
                assert out.tobytes() in expected, (
                    f"bytes {first} to {limit} are a part of a commit"
                )

    def close(self) -> None:
        """Close the lock file."""
        self._locks.close()

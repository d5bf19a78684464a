"""Steps through reads, with entire commits between any two instructions."""

from __future__ import annotations

import mmap
import random
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from smbox import dtypes
from smbox.errors import RegionFreedError
from smbox.memory.commit import StripeBusy, recover_stripe
from smbox.memory.kernels import KernelCode
from smbox.memory.layout import RegionState, Stripe
from smbox.memory.locks import LockFile
from smbox.memory.mapped import MappedRegion
from smbox.memory.node_memory import NodeMemory
from smbox.memory.reading import Reader
from smbox.testing.dead_writer import leave_open
from smbox.testing.regions import commit, done_of
from smbox.testing.stepping import case_memory, small_memory
from smbox.testing.stepping.case_memory import open_case
from smbox.testing.stepping.cases import Case
from smbox.testing.stepping.commits import address_of
from smbox.testing.stepping.small_memory import MEMORY_NBYTES, STRIPE_NBYTES
from smbox.testing.stepping.tracee import Tracee, stop_for_parent

ROW_NBYTES: Final = 64
STRIPES: Final = 2
STREAMED_STRIPES: Final = 64
"""From this many stripes on, the library copies past the caches: STREAMED_STRIPES of read.c."""
VALUES: Final = 256
"""This many integers are exact in bfloat16. Each commit writes the next one everywhere."""
FREED_SHARE: Final = 0.1
RETURN_MAX: Final = 40
"""Maximum number of instructions after the last check of the region's state."""
AGAIN: Final = 40
"""Instructions between two commits that force a reader to take the lock."""


@dataclass(frozen=True, slots=True)
class Read:
    """One way to read a region whose stripes each hold one value.

    Attributes:
        name: shown in the output.
        dtype: of the destination.
        run: reads the entire region.
        share: share of its instructions that a full run checks.
        stripes: number of stripes of the region.
    """

    name: str
    dtype: str
    run: Callable[[Reader, MappedRegion, NDArray[np.uint8]], None]
    share: float = 1.0
    stripes: int = STRIPES


def _read(reader: Reader, region: MappedRegion, out: NDArray[np.uint8]) -> None:
    reader.read(region, 0, region.nbytes, out)


def _read_narrow(reader: Reader, region: MappedRegion, out: NDArray[np.uint8]) -> None:
    operand = dtypes.by_name("bfloat16").code
    reader.read(region, 0, region.nbytes, out, operand=operand)


def _read_rows(reader: Reader, region: MappedRegion, out: NDArray[np.uint8]) -> None:
    """Read all rows in their order: the rows of a stripe are of one commit."""
    rows = np.arange(region.nbytes // ROW_NBYTES)
    reader.read_rows(region, 0, rows, ROW_NBYTES, out)


READS: Final = (
    Read("read", "float32", _read),
    Read("read past the caches", "float32", _read, share=0.02, stripes=STREAMED_STRIPES),
    Read("read as bfloat16", "bfloat16", _read_narrow),
    Read("read of rows", "float32", _read_rows),
)


def step_reads(read: Read, share: float, rng: random.Random) -> Counter[str]:
    """Commit between the instructions of a read: no stripe may have values of two commits.

    Args:
        read: the kind of read.
        share: share of the instructions after which something happens.
        rng: chooses them.

    Returns:
        Counts of what was done.
    """
    count = Counter[str]()
    kind, size = dtypes.by_name(read.dtype), read.stripes * STRIPE_NBYTES // 4
    out = np.frombuffer(
        mmap.mmap(-1, size * kind.itemsize + 1),  # the child shares it
        np.uint8,
    )
    case = Case(read.name, (np.zeros(size, np.float32),), ())
    with open_case(case) as node:

        def read_for_ever() -> None:
            region, reader = case_memory.attach_region(node, 0), Reader(LockFile(node))
            stop_for_parent()
            while True:
                try:
                    read.run(reader, region, out[:-1])
                except StripeBusy:
                    continue
                except RegionFreedError:
                    out[-1] += 1

        memory = NodeMemory.open(node, MEMORY_NBYTES)
        try:
            with Tracee(read_for_ever) as child:
                writes = Writes(memory, out)
                parts = out[:-1].view(kind.numpy).reshape(-1, STRIPE_NBYTES // 4)
                _walk(child, writes, parts, count, share * read.share, rng)
        finally:
            memory.close(keep=False)
    return count


class Writes:
    """Commits of increasing values to the entire only region.

    Attributes:
        value: the last value that was committed to every stripe.

    Args:
        memory: of the node.
        output: destination of the reader; its last byte counts RegionFreedErrors.
    """

    def __init__(self, memory: NodeMemory, output: NDArray[np.uint8]) -> None:
        self.value = 0
        self._output = output
        (self._region,) = memory.regions.values()
        self._memory = memory
        self._locks = LockFile(memory.name)
        self._writer = small_memory.small_writer(memory)
        self._at: int | None = None

    def die(self) -> bool:
        """Leave stripe 0 open and partly changed; return False if the reader holds it."""
        if not self._region.try_lock(0, self._locks):
            return False
        self._region.unlock(0, self._locks)
        if self._is_open():
            return False
        leave_open(self._region, first=0, limit=STRIPE_NBYTES, saved=STRIPE_NBYTES // 2)
        return True

    def recover(self) -> None:
        """Recover stripe 0, unless the reader has done it or holds the lock."""
        if self._is_open():
            with suppress(StripeBusy):
                recover_stripe(self._region, 0, self._locks)
        self._memory.sweep_slots()

    def set_state(self, state: int) -> None:
        """Set the state of the region."""
        self._region.state = state

    def freed_reads(self) -> int:
        """Return how often the reader raised RegionFreedError, modulo 256."""
        return int(self._output[-1])

    def _is_open(self) -> bool:
        return bool(int(self._region.table[0, Stripe.SEQUENCE]) & Stripe.OPEN)

    def commit(self) -> bool:
        """Write the next value everywhere; return False if the reader holds a stripe."""
        size = self._region.nbytes // 4
        source = np.full(size, (self.value + 1) % VALUES, np.float32).view(np.uint8)
        try:
            commit(
                self._writer,
                (self._region,),
                KernelCode.REPLACE,
                0,
                self._region.nbytes,
                source,
                1.0,
                at=self._at,
            )
        except StripeBusy:
            self._at = done_of(self._writer)
            return False
        self.value += 1
        self._at = None
        return True


def _walk(
    child: Tracee,
    writes: Writes,
    out: NDArray[Any],
    count: Counter[str],
    share: float,
    rng: random.Random,
) -> None:
    function, after = address_of("smbox_read"), 0
    assert child.run_to(function)
    while True:
        after += 1
        if rng.random() >= share:
            continue
        first = writes.value
        if rng.random() < FREED_SHARE:
            if not _free(child, writes, after, count):
                break
            continue
        step = rng.choice((_commit_once, _commit_again, _die_and_recover))
        if not step(child, writes, after, count):
            break
        assert child.run_to(function)
        _check(out, first, writes.value)
        count["reads"] += 1


def _commit_once(child: Tracee, writes: Writes, after: int, count: Counter[str]) -> bool:
    """Commit after some instructions; return False if the read has fewer."""
    if not _step(child, after, count):
        return False
    _commit(child, writes, count)
    return True


def _commit_again(child: Tracee, writes: Writes, after: int, count: Counter[str]) -> bool:
    """Commit after some instructions, and again and again until the reader takes the lock."""
    if not _step(child, after, count):
        return False
    _commit(child, writes, count)
    while _step(child, AGAIN, count):
        _commit(child, writes, count)
    return True


def _die_and_recover(child: Tracee, writes: Writes, after: int, count: Counter[str]) -> bool:
    """Let a writer die after some instructions, and recover the stripe AGAIN later."""
    if not _step(child, after, count):
        return False
    count["dead writers"] += writes.die()
    _step(child, AGAIN, count)
    writes.recover()
    return True


def _free(child: Tracee, writes: Writes, after: int, count: Counter[str]) -> bool:
    """Free the region after some instructions: the reader must then raise an error."""
    before = writes.freed_reads()
    if not _step(child, after, count):
        return False
    writes.set_state(RegionState.FREED)
    left = 0
    while child.step():
        left += 1
    assert child.run_to(address_of("smbox_read"))
    writes.set_state(RegionState.LIVE)
    has_raised = writes.freed_reads() == (before + 1) % 256
    assert has_raised or left < RETURN_MAX, f"no error {left} instructions after the free"
    count["reads of a freed region"] += 1
    return True


def _step(child: Tracee, instructions: int, count: Counter[str]) -> bool:
    """Step this many instructions; return False if the read has ended."""
    for _ in range(instructions):
        if not child.step():
            return False
        count["instructions"] += 1
    return True


def _commit(child: Tracee, writes: Writes, count: Counter[str]) -> None:
    """Commit as soon as the reader holds no stripe."""
    while not writes.commit():
        count["held by the reader"] += 1
        if not child.step():
            break
    else:
        count["commits"] += 1


def _check(out: NDArray[Any], first: int, last: int) -> None:
    """Raise AssertionError unless each stripe has one value, committed during the read."""
    allowed = {value % VALUES for value in range(first, last + 1)}
    for part in out:
        values = set(part.astype(np.int64).tolist())
        assert len(values) == 1, f"a part of a commit was read: {values}"
        assert values <= allowed, f"read {values}, but the values were {first} to {last}"

"""HostMean: the mean of gradients of all ranks of a host, in shared memory during backward.

A final gradient is stored in this rank's shared row. When all gradients of a bucket are there,
the rank announces the bucket. In its hooks, every rank averages its own part of the buckets
that all ranks have announced, and writes the mean to that part of all rows. This does
reduce-scatter and all-gather in one pass over the memory, without threads and messages.

Two counters per rank synchronize the ranks: the numbers of WRITTEN and REDUCED buckets. Only
the owner of a row may access a bucket until it has announced the bucket, and again after all
ranks have reduced it. STEPPED counts steps; it does not change while a rank averages. JOINED,
DUE and DIGEST tell the others about this rank's loop, parameters and state.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Sequence
from typing import Final

import torch

from smbox_torch.averaging.buckets import SharedRows, described, plan, shared_nbytes
from smbox_torch.averaging.equal_state import check_equal, is_any_due
from smbox_torch.averaging.host_memory import HostMemory
from smbox_torch.averaging.mean import Follow, GradientViews
from smbox_torch.averaging.packed import Packed, packed_nbytes
from smbox_torch.averaging.rendezvous import Rendezvous
from smbox_torch.averaging.steps import behind, leads
from smbox_torch.world import World

__all__ = ["HostMean"]

WRITTEN: Final = 0
REDUCED: Final = 1
STEPPED: Final = 2
JOINED: Final = 3  # how often the rank has run out of batches, with its steps at the last time
DUE: Final = 4  # odd: the rank requests a comparison; so do unequal numbers, see Mean.begin
DIGEST: Final = 5  # of the rank's parameters and states, with the number of its buckets
"""Counters of the rendezvous."""
DIGEST_BITS: Final = 32
"""DIGEST has the digest in the lower bits, the number of buckets above."""
STEPS_BITS: Final = 40
"""JOINED has the steps in the lower bits, the number of joins above."""


class HostMean:
    """The mean of gradients of a host's ranks, on one rank.

    Args:
        parameters: those that require gradients; the same on every rank.
        buffers: buffers that all ranks copy from the first rank with a batch; the same on
            every rank.
        world: rank and size of this process.
        name: name of the shared memory.
        bucket_nbytes: largest size of a bucket, in bytes.
        timeout_s: time after which a rank that does not respond is considered lost, in seconds.

    Raises:
        ConfigError: the ranks differ, or a dtype cannot be averaged; the memory was removed.
        WorkerLostError: a rank never arrived; the memory was removed.
    """

    can_repeat = True  # the counters tell what this rank has done

    def __init__(
        self,
        parameters: Sequence[torch.Tensor],
        buffers: Sequence[torch.Tensor],
        world: World,
        *,
        name: str,
        bucket_nbytes: int,
        timeout_s: float,
    ) -> None:
        self._buckets = plan(parameters, bucket_nbytes)
        self.rank, ranks, count = world.local_rank, world.local_world_size, len(parameters)
        self._memory = HostMemory.join(
            name,
            world,
            shared_nbytes(self._buckets, ranks, count, packed_nbytes(buffers)),
            layout=described(parameters, buffers, bucket_nbytes),
            timeout_s=timeout_s,
        )
        self.rendezvous = self._memory.rendezvous
        self.rows = SharedRows(self._memory.data, self._buckets, ranks, count)
        self._state = Packed(buffers, self.rows.state)
        firsts = {i: at for bucket in self._buckets for i, at in bucket.members.items()}
        views = [self.rows.view(self.rank, firsts[i], p) for i, p in enumerate(parameters)]
        self._views = GradientViews(parameters, views)
        numbered = enumerate(self._buckets)
        self._bucket_of = {index: n for n, bucket in numbered for index in bucket.members}
        self._first_rank = world.rank_of(0)
        self.is_any_due = False
        self._present: list[int] = []  # ranks that have batches left
        self.ranks = 0
        self.nbytes = 2 * sum(bucket.limit - bucket.first for bucket in self._buckets)
        self._reduced = self._written = self._base = self._joins = 0
        self._all_used = bytes([1] * count)
        self._left: list[set[int]] = []
        self._used: list[bool] = []
        self._is_source = False
        self._farewell = weakref.finalize(self, _say_goodbye, self.rendezvous)

    # -- while backward runs ---------------------------------------------------------------

    def begin(self, weight: float, *, due: int) -> None:
        """Begin a round, before its first gradient; ConfigError if the rows were moved."""
        self.rows.check()
        self._base = self._written
        self._left = [set(bucket.members) for bucket in self._buckets]
        self.rows.weights[self.rank] = weight
        self.rows.used[self.rank][:] = self._all_used
        self.rendezvous.raise_to(DUE, due)

    def take(self, index: int) -> None:
        """Store a gradient; announce and reduce complete buckets; again if interrupted."""
        left = self._left[self._bucket_of[index]]
        if index in left:
            if not self._views.take(index):
                self.rows.used[self.rank][index] = 0
            left.remove(index)
        if not left:
            self._announce()
        while self._reduced < self._written and self.rendezvous.reached(
            WRITTEN, self._reduced + 1
        ):
            self._reduce()

    def _announce(self) -> None:
        """Announce, in order, the buckets whose gradients are all in the row."""
        limit = self._base + len(self._buckets)
        while self._written < limit and not self._left[self._written - self._base]:
            self._written += 1
        self.rendezvous.raise_to(WRITTEN, self._written)

    @torch.no_grad()
    def _reduce(self) -> None:
        """Reduce this rank's part of the next bucket, which all ranks have announced."""
        if self._reduced == self._base:
            steps = self.rendezvous.counters(STEPPED)
            if min(steps) < max(steps):
                skipped = behind(steps, range(len(steps)))
                self.rendezvous.give_up_skipped(skipped, steps)
            # Read this before the others continue: they would write the next round's, or join.
            dues = self.rendezvous.counters(DUE)
            joins = [word >> STEPS_BITS for word in self.rendezvous.counters(JOINED)]
            self._present = [rank for rank, n in enumerate(joins) if n == min(joins)]
            self.is_any_due = is_any_due(dues, self._present)
            self.ranks = len(self._present)
        self.rows.reduce(self._reduced - self._base, self.rank)
        if self._reduced + 1 - self._base == len(self._buckets):
            # Read this before the others continue: they would write the next round's flags.
            weights = enumerate(self.rows.weights.tolist())
            counted = [rank for rank, weight in weights if weight]
            flags = [self.rows.used[rank].tobytes() for rank in counted]
            self._used = [any(each) for each in zip(*flags, strict=True)]
            self._is_source = counted[0] == self.rank
            if self._is_source:
                self._state.store()
        self._reduced += 1
        self.rendezvous.raise_to(REDUCED, self._reduced)

    # -- at its end ------------------------------------------------------------------------

    def finish(self) -> None:
        """Wait until all parts of the mean are written, and set the gradients to the mean."""
        self._announce()  # and REDUCED below: an interrupt may have stopped take before it
        while self._reduced < self._written:
            self.rendezvous.wait(WRITTEN, self._reduced + 1)
            self._reduce()
        self.rendezvous.raise_to(REDUCED, self._reduced)
        self.rendezvous.wait(REDUCED, self._written)
        if not self._is_source:
            self._state.load()
        self._views.hand_out(self._used)

    def compare(self, digest: int) -> None:
        """Write this rank's digest to the memory and compare it with those of all ranks."""
        number = self._written % (1 << DIGEST_BITS)
        self.rendezvous.raise_to(DIGEST, number << DIGEST_BITS | digest)

        def lags(rank: int) -> bool:
            return self.rendezvous.counters(DIGEST)[rank] >> DIGEST_BITS != number

        self.rendezvous.wait_until(
            lambda: not any(map(lags, range(self.rendezvous.size))), lags
        )
        digests = [word % (1 << DIGEST_BITS) for word in self.rendezvous.counters(DIGEST)]
        check_equal({self._first_rank + rank: digests[rank] for rank in self._present})

    # -- steps -----------------------------------------------------------------------------

    def stepped(self, steps: int) -> None:
        """Publish the number of steps."""
        self.rendezvous.raise_to(STEPPED, steps)

    def meet(self) -> None:
        """Return: a rank that waits within a step checks which ranks :meth:`skipped` it."""

    def skipped(self) -> list[int]:
        """Return the ranks that have skipped the step that this one is in.

        They have announced gradients of the next round, and done no more steps than this one.
        """
        written = self.rendezvous.counters(WRITTEN)
        steps = self.rendezvous.counters(STEPPED)
        return [
            rank
            for rank, (buckets, count) in enumerate(zip(written, steps, strict=True))
            if buckets > self._written and count <= steps[self.rank]
        ]

    def join(self) -> None:
        """Publish that this rank's loop has ended, with its number of steps."""
        self._joins += 1 << STEPS_BITS
        steps = self.rendezvous.counters(STEPPED)[self.rank]
        self.rendezvous.raise_to(JOINED, self._joins + steps)

    def follow(self, is_awaited: Callable[[], bool]) -> Follow:
        """Wait until another rank is ahead of this one, or all have joined."""

        def is_led(counter: int) -> bool:
            counters = self.rendezvous.counters(counter)
            return max(counters) > counters[self.rank]

        def is_over() -> bool:
            return self.rendezvous.reached(JOINED, self._joins)

        while True:
            self.rendezvous.wait_until(
                lambda: is_led(WRITTEN) or is_led(STEPPED) or is_awaited() or is_over(),
                lambda rank: self.rendezvous.counters(JOINED)[rank] < self._joins,
            )
            # A rank steps, then writes the next round or joins: read in the reverse order.
            over, writes = is_over(), is_led(WRITTEN)
            if is_led(STEPPED) or is_awaited():
                return Follow.STEP
            if over:
                return Follow.END  # a writing rank has begun a round after the loops
            if writes:
                return Follow.ROUND

    def is_leader(self) -> bool | None:
        """Compare the steps at which the ranks joined.

        A rank that has joined again was synchronized with this one, or did as many steps.
        """
        words = self.rendezvous.counters(JOINED)
        return leads(self.rank, [word % (1 << STEPS_BITS) for word in words])

    def close(self, *, steps: int | None) -> None:
        """Leave the memory."""
        self._farewell.detach()
        self._memory.close(steps=steps)


def _say_goodbye(rendezvous: Rendezvous) -> None:
    """Leave on behalf of a rank that was not closed, at process exit or garbage collection.

    Without this the other ranks could not distinguish a normal exit from a kill.
    """
    failed = sys.exc_info()[0] is not None or getattr(sys, "last_value", None) is not None
    steps = rendezvous.counters(STEPPED)[rendezvous.rank]
    rendezvous.leave(steps=None if failed else steps)

"""Gradients of all ranks of a host replaced by their mean while backward runs.

The gradient of a parameter that is done lands in this rank's shared row. A bucket whose
parameters are all done is announced; every rank averages its own part of an announced bucket
whenever one of its hooks runs, and writes the mean to that part of all rows: reduce-scatter
and all-gather in one pass over the memory. There is no thread and no message: whoever
computes also reduces.

Two counters per rank order it all: WRITTEN and REDUCED buckets since the beginning. A bucket of
a row is its owner's until the owner has announced it, and again when all have reduced it.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final

import torch

from smbox.errors import ConfigError
from smbox_torch.buckets import Bucket, SharedRows, described, plan, shared_nbytes
from smbox_torch.host_memory import HostMemory
from smbox_torch.publisher import Publisher, state_nbytes
from smbox_torch.stats import Recorder
from smbox_torch.world import World

WRITTEN: Final = 0
REDUCED: Final = 1
"""Lanes of the rendezvous that count buckets; PUBLISHED is the publisher's."""


class GradientSync:
    """Keeps the gradients of one rank's parameters equal to the mean over the ranks.

    Args:
        parameters: those that require gradients; the same on every rank.
        buffers: what ``publish`` sends; the same on every rank.
        world: who this process is.
        name: of the shared memory.
        bucket_nbytes: most bytes of a bucket.
        timeout_s: until a rank that does not answer is given up, in seconds.

    Raises:
        ConfigError: the ranks differ, or a dtype has no mean; nothing is left.
        WorkerLostError: a rank never came; nothing is left.
    """

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
        self._parameters = list(parameters)
        self._buckets = plan(self._parameters, bucket_nbytes)
        self.rank, ranks = world.local_rank, world.local_world_size
        count = len(self._parameters)
        self._memory = HostMemory.join(
            name,
            world,
            shared_nbytes(self._buckets, ranks, count, state_nbytes(buffers)),
            layout=described(self._parameters, buffers, bucket_nbytes),
            timeout_s=timeout_s,
        )
        self.rendezvous = self._memory.rendezvous
        self.rows = SharedRows(self._memory.data, self._buckets, ranks, count)
        self._publisher = Publisher(buffers, self.rows.state, self.rendezvous)
        self._firsts = _firsts(self._buckets)
        self._bucket = {
            member: index
            for index, bucket in enumerate(self._buckets)
            for member in bucket.members
        }
        self._place = {id(found): index for index, found in enumerate(self._parameters)}
        self._views = self._views_of(self.rank)
        self.weight = 1.0
        self.source = 0
        self.enabled = True
        self.is_synced = False
        self.recorder = Recorder()
        self._reduced = self._written = self._base = 0
        self._missing: list[set[int]] = []
        self._used: list[bool] = [True] * count
        self._started_s = 0.0
        self._open()
        self._broadcast()
        self._hooks = [
            each.register_post_accumulate_grad_hook(self._on_gradient)  # type: ignore[no-untyped-call]
            for each in self._parameters
        ]

    def _views_of(self, row: int) -> list[torch.Tensor]:
        return [
            self.rows.view(row, self._firsts[index], each)
            for index, each in enumerate(self._parameters)
        ]

    def _open(self) -> None:
        """Begin a round: no gradient has come yet."""
        self._base = self._written
        self._missing = [set(bucket.members) for bucket in self._buckets]
        self._is_open = False

    # -- while backward runs ---------------------------------------------------------------

    def _on_gradient(self, parameter: torch.Tensor) -> None:
        """Take the gradient that autograd has just finished."""
        if not self.enabled:
            self.is_synced = False  # what backward before this one averaged is the mean no more
            return
        if not self._is_open:
            self._begin()
            # Public callbacks run per tensor; only the engine knows when backward is over.
            torch.autograd.Variable._execution_engine.queue_callback(self.finish)  # type: ignore[attr-defined,unused-ignore]  # noqa: SLF001
        index = self._place[id(parameter)]
        missing = self._missing[self._bucket[index]]
        if index not in missing:
            raise ConfigError(
                "a second gradient of one parameter came before the first was averaged: this"
                " backward runs a part of the model twice, or one before it was broken off; if"
                " so, call synchronize(), which ends its round on all ranks, and zero_grad()",
                shape=tuple(parameter.shape),
            )
        self._take(index)
        missing.remove(index)
        self._announce_whole()
        self._advance()

    def _begin(self) -> None:
        self._is_open = True
        self.is_synced = False
        self._started_s = time.perf_counter()
        self.rows.weights[self.rank] = self.weight

    def _take(self, index: int) -> None:
        """Bring a parameter's gradient to this rank's row and make it a view of the row."""
        parameter, view = self._parameters[index], self._views[index]
        gradient = parameter.grad
        self.rows.used[self.rank, index] = gradient is not None
        if gradient is None:
            view.zero_()
        elif gradient.is_sparse:
            raise ConfigError("sparse gradients have no place in a row; use sparse=False")
        elif gradient.data_ptr() != view.data_ptr():
            view.copy_(gradient)
            self._lend(parameter, view)

    def _announce_whole(self) -> None:
        """Announce, in order, the buckets whose gradients are all in the row."""
        before = self._written
        while self._written - self._base < len(self._buckets):
            if self._missing[self._written - self._base]:
                break
            self._written += 1
        if self._written != before:
            self.rendezvous.raise_to(WRITTEN, self._written)

    def _advance(self) -> None:
        """Reduce this rank's part of every bucket that all ranks have announced."""
        while self._reduced < self._written and self.rendezvous.reached(
            WRITTEN, self._reduced + 1
        ):
            self._reduce()

    def _reduce(self) -> None:
        with torch.no_grad():
            self.rows.reduce(self._reduced - self._base, self.rank)
        self._reduced += 1
        if self._reduced - self._base == len(self._buckets):
            # Before the others may go on: they would write the next round's flags.
            self._used = self.rows.used[self.rows.weights != 0].any(axis=0).tolist()
            self.source = int((self.rows.weights != 0).argmax())
        self.rendezvous.raise_to(REDUCED, self._reduced)

    # -- at its end ------------------------------------------------------------------------

    def finish(self) -> None:
        """Wait for the other ranks; afterwards every gradient is the mean.

        Raises:
            WorkerLostError: a rank died, left or did not come; gradients are undefined.
        """
        if not self._is_open:
            self._begin()
        finishing_s = time.perf_counter()
        with torch.no_grad():
            for missing in self._missing:
                for index in missing:
                    self._take(index)
                missing.clear()
            self._announce_whole()
            while self._reduced < self._written:
                self.rendezvous.wait(WRITTEN, self._reduced + 1)
                self._reduce()
            self._gather()
        self._open()
        self.is_synced = True
        ended_s = time.perf_counter()
        nbytes = sum(bucket.limit - bucket.first for bucket in self._buckets)
        self.recorder.exchange(took_s=ended_s - self._started_s, nbytes=2 * nbytes)
        self.recorder.waited(ended_s - finishing_s)

    def _gather(self) -> None:
        """Wait until all parts of the mean are there and hand it out as the gradients."""
        self.rendezvous.wait(REDUCED, self._written)
        for parameter, view, used in zip(
            self._parameters, self._views, self._used, strict=True
        ):
            if not used:
                parameter.grad = None
            elif parameter.device.type != "cpu" and parameter.grad is not None:
                parameter.grad.copy_(view)
            else:
                self._lend(parameter, view)

    def _lend(self, parameter: torch.Tensor, view: torch.Tensor) -> None:
        """Make the row's view the gradient; a device keeps gradients of its own."""
        if parameter.device.type == "cpu":
            parameter.grad = view
        elif parameter.grad is None:
            parameter.grad = view.to(parameter.device)

    # -- parameters and buffers --------------------------------------------------------------

    def _broadcast(self) -> None:
        """Give every rank the parameters and buffers of the first one."""
        with torch.no_grad():
            if self.rank == 0:
                for row in range(1, self.rendezvous.size):
                    for parameter, view in zip(
                        self._parameters, self._views_of(row), strict=True
                    ):
                        view.copy_(parameter)
            self.publish()
            if self.rank != 0:
                for parameter, view in zip(self._parameters, self._views, strict=True):
                    parameter.copy_(view)

    def publish(self) -> None:
        """Give every rank the buffers of the rank that has the say.

        That is the first one that had a batch in the last round.

        Raises:
            WorkerLostError: that rank died, left or did not come.
        """
        self._publisher.publish(self.source)

    def close(self) -> None:
        """Leave the group; gradients stay, hooks go."""
        for hook in self._hooks:
            hook.remove()
        self._memory.close()


def _firsts(buckets: Sequence[Bucket]) -> dict[int, int]:
    """Map each parameter's index to the byte of a row where its gradient begins."""
    return {
        index: first
        for bucket in buckets
        for index, first in zip(bucket.members, bucket.firsts, strict=True)
    }

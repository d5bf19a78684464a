"""PendingUpdate: the change of a worker's parameters that is not pushed yet.

It is the sum of x - base over the steps of any local optimizer; base is x as of the last
exchange.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from numpy.typing import NDArray

from smbox_torch.adapter import saved
from smbox_torch.boxes import Array
from smbox_torch.downpour.partial_push import PartialPush
from smbox_torch.model.flat import FlatParameters
from smbox_torch.optimizer.center import Center
from smbox_torch.optimizer.stats import Recorder

__all__ = ["PendingUpdate"]


class PendingUpdate:
    """The changes of a worker's parameters that are not pushed yet.

    Args:
        flat: the worker's parameters.

    Attributes:
        pending: one ``[P]`` per buffer, the update to push; undefined between :meth:`clear` and
            the next :meth:`collecting`.
        base: one ``[P]`` per buffer; in a :meth:`collecting` block, a place to fetch the center
            to.
    """

    def __init__(self, flat: FlatParameters) -> None:
        self._flat = flat
        self.base: list[Array] = [buffer.load().copy() for buffer in flat.buffers]
        self.pending: list[Array] = [np.zeros_like(base) for base in self.base]
        self._has_pending = False  # False: the contents of ``pending`` were pushed
        self._is_based = True  # False: ``base`` is in use, or an interrupt came meanwhile
        self._partial = PartialPush()

    @contextmanager
    def ignoring_changes(self, *, since_now: bool = False) -> Iterator[None]:
        """Do not count the block's changes of x as an update; the worker continues from x.

        Args:
            since_now: earlier changes stay pending. Otherwise they are ignored, too, if the
                block changes x.
        """
        if since_now:
            self.collect()
        before = [buffer.load().copy() for buffer in self._flat.buffers]
        try:
            yield
        finally:
            if not _same(before, [buffer.load() for buffer in self._flat.buffers]):
                self._start_from_x()

    @contextmanager
    def collecting(self) -> Iterator[None]:
        """Add the change of x since the last exchange to ``pending``, for the block to push.

        The block may also fetch the center to ``base`` and call :meth:`load_base`. Otherwise,
        and after an exception, the worker continues from x.

        Raises:
            RequestTimeoutError: an earlier push timed out, and the node still does not say what
                it has applied. Nothing changed.
        """
        self._settle()
        try:
            self._is_based = False
            self._collect()
            yield
        finally:
            if not self._is_based:
                self._start_from_x()

    def _settle(self) -> None:
        """Bring ``pending`` and ``base`` in order after an earlier error or interrupt."""
        self._partial.settle(self.pending)
        if not self._is_based:
            self._start_from_x()

    def _collect(self) -> None:
        """Add the change of x to ``pending`` in place, without a third array."""
        for at, buffer in enumerate(self._flat.buffers):
            base, pending = self.base[at], self.pending[at]
            np.subtract(buffer.load(), base, out=base)
            if self._has_pending:
                np.add(pending, base, out=pending)
            else:
                self.base[at], self.pending[at] = pending, base
        self._has_pending = True

    def load_base(self) -> None:
        """Set x to ``base``; this does not count as an update."""
        for buffer, base in zip(self._flat.buffers, self.base, strict=True):
            buffer.host[...] = base
            buffer.store()
        self._is_based = True

    def collect(self) -> None:
        """Add the change of x since the last exchange to ``pending``, without pushing."""
        with self.collecting():
            pass

    def push_if_any(self, center: Center, recorder: Recorder) -> None:
        """Push the pending update to a center, if there is one, besides the worker's steps."""
        if self._has_pending and any(pending.any() for pending in self.pending):
            self.push(center)
            center.note_own()
            recorder.nbytes += center.sent_nbytes
        self.clear()

    def push(self, center: Center, *, fetch: bool = False) -> None:
        """Add the pending update to a center; with ``fetch``, read the sum into ``base``.

        Raises:
            SmboxError: the push of one buffer failed; later ones were not sent. What the center
                lacks stays pending. After a RequestTimeoutError, the next :meth:`collecting`
                finds out how much of that buffer the node has applied.
        """
        sent = center.operands(self.pending)
        places = self.base if fetch else [None] * len(sent)

        def add(at: int, moved: Array) -> None:
            center.regions[at].accumulate(moved, out=places[at])

        self._partial.push(self.pending, sent, add)
        self.clear()

    def clear(self) -> None:
        """Discard the pending update, after it was pushed."""
        self._has_pending = False
        self._partial.forget()

    def rebase(self) -> None:
        """Set ``base`` to x: the change since the last exchange is counted elsewhere."""
        for buffer, base in zip(self._flat.buffers, self.base, strict=True):
            base[...] = buffer.load()
        self._is_based = True

    def reset(self) -> None:
        """Set ``base`` to x and discard the pending update."""
        self.rebase()
        self.clear()

    def _start_from_x(self) -> None:
        """Set ``base`` to x as last loaded."""
        if not self._has_pending:  # reuse the pushed array: it is still in the caches
            self.base, self.pending = self.pending, self.base
        for buffer, base in zip(self._flat.buffers, self.base, strict=True):
            base[...] = buffer.host
        self._is_based = True

    def state(self) -> list[torch.Tensor]:
        """Return base and pending update as tensors; raises as :meth:`collecting`."""
        self._settle()
        if not self._has_pending:
            for pending in self.pending:
                pending[...] = 0
        return [saved(array) for array in self.base + self.pending]

    def load_state(self, state: list[torch.Tensor]) -> None:
        """Restore what :meth:`state` returned."""
        for mine, kept in zip(self.base + self.pending, state, strict=True):
            _bytes(mine)[...] = kept.cpu().numpy()
        self._has_pending = self._is_based = True
        self._partial.forget()


def _same(one: Sequence[Array], other: Sequence[Array]) -> bool:
    """Compare bit by bit, so that NaN equals NaN."""
    return all(np.array_equal(_bytes(a), _bytes(b)) for a, b in zip(one, other, strict=True))


def _bytes(array: Array) -> NDArray[np.uint8]:
    return array.view(np.uint8)

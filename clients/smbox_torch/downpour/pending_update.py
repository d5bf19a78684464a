"""What a worker moved by itself since it last pushed: the difference of its parameters.

x - base, gathered over any local optimizer's steps; base is x as of the last exchange.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from numpy.typing import NDArray

from smbox_torch.adapter import saved
from smbox_torch.boxes import Array
from smbox_torch.model.flat import FlatParameters
from smbox_torch.optimizer.center import Center

__all__ = ["PendingUpdate"]


class PendingUpdate:
    """PendingUpdate of a worker that are not pushed yet.

    Args:
        flat: the worker's parameters.

    Attributes:
        pending: per buffer ``[P]``, what is to be pushed; after :meth:`clear` without meaning
            until moves are :meth:`collecting` again.
        base: per buffer ``[P]``; while moves are gathered, a place to fetch the center to.
    """

    def __init__(self, flat: FlatParameters) -> None:
        self._flat = flat
        self.base: list[Array] = [buffer.load().copy() for buffer in flat.buffers]
        self.pending: list[Array] = [np.zeros_like(base) for base in self.base]
        self._has_pending = False  # pending; else what is in the arrays was pushed
        self._is_loaded = False

    @contextmanager
    def ignoring_changes(self) -> Iterator[None]:
        """Take what the block makes of x, the center for one, as where the worker goes on."""
        before = [buffer.load().copy() for buffer in self._flat.buffers]
        yield
        if not _same(before, [buffer.load() for buffer in self._flat.buffers]):
            self._start_from_x()

    @contextmanager
    def collecting(self) -> Iterator[None]:
        """Add what x moved since the last exchange to what is pending, for the block to push.

        The block may also fetch the center to ``base`` and :meth:`load_base` it. Otherwise, and
        whatever it raises, the worker goes on from x.
        """
        self._is_loaded = False
        try:
            self._collect()
            yield
        finally:
            if not self._is_loaded:
                self._start_from_x()

    def _collect(self) -> None:
        """Compute moves in place: a third array would have to come from memory, too."""
        for at, buffer in enumerate(self._flat.buffers):
            base, pending = self.base[at], self.pending[at]
            np.subtract(buffer.load(), base, out=base)
            if self._has_pending:
                np.add(pending, base, out=pending)
            else:
                self.base[at], self.pending[at] = pending, base
        self._has_pending = True

    def load_base(self) -> None:
        """Set x to ``base``; that is no move."""
        for buffer, base in zip(self._flat.buffers, self.base, strict=True):
            buffer.host[...] = base
            buffer.store()
        self._is_loaded = True

    def collect(self) -> None:
        """Add what x moved since the last look to what is pending, which stays there."""
        with self.collecting():
            pass

    def push_to(self, center: Center) -> None:
        """Add what is pending to a center, if there is anything."""
        if self._has_pending and any(pending.any() for pending in self.pending):
            sent = center.operands(self.pending)
            for region, moved in zip(center.regions, sent, strict=True):
                region.accumulate(moved)
        self.clear()

    def clear(self) -> None:
        """Forget what was pending."""
        self._has_pending = False

    def rebase(self) -> None:
        """Take x as it is for the base: what moved it since the last look counts elsewhere."""
        for buffer, base in zip(self._flat.buffers, self.base, strict=True):
            base[...] = buffer.load()

    def reset(self) -> None:
        """Take x as it is for the base: nothing was moved."""
        self.rebase()
        self.clear()

    def _start_from_x(self) -> None:
        """Go on from x as it was loaded last."""
        if not self._has_pending:  # what was pushed is still in the caches
            self.base, self.pending = self.pending, self.base
        for buffer, base in zip(self._flat.buffers, self.base, strict=True):
            base[...] = buffer.host

    def state(self) -> list[torch.Tensor]:
        """Return everything, as torch can save it."""
        if not self._has_pending:
            for pending in self.pending:
                pending[...] = 0
        return [saved(array) for array in self.base + self.pending]

    def load_state(self, state: list[torch.Tensor]) -> None:
        """Take back what :meth:`state` returned."""
        for mine, kept in zip(self.base + self.pending, state, strict=True):
            _bytes(mine)[...] = kept.numpy()
        self._has_pending = True


def _same(one: Sequence[Array], other: Sequence[Array]) -> bool:
    """Compare bit by bit: NaN is what it is."""
    return all(np.array_equal(_bytes(a), _bytes(b)) for a, b in zip(one, other, strict=True))


def _bytes(array: Array) -> NDArray[np.uint8]:
    return array.view(np.uint8)

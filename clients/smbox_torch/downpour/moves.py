"""What a worker moved by itself since it last pushed: the difference of its parameters.

x - base, gathered over any local optimizer's steps; base is x as of the last look or fetch.
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

__all__ = ["Moves"]


class Moves:
    """Moves of a worker that are not pushed yet.

    Args:
        flat: the worker's parameters.

    Attributes:
        pending: per buffer ``[P]``, what is to be pushed; after :meth:`pushed` without meaning
            until the next :meth:`gather`.
    """

    def __init__(self, flat: FlatParameters) -> None:
        self._flat = flat
        self._base = [buffer.load().copy() for buffer in flat.buffers]
        self.pending: list[Array] = [np.zeros_like(base) for base in self._base]
        self._is_any = False  # pending; else what is in the arrays was pushed

    @contextmanager
    def standing_still(self) -> Iterator[None]:
        """Take what the block makes of x, the center for one, as where the worker goes on."""
        before = [buffer.load().copy() for buffer in self._flat.buffers]
        yield
        if not _same(before, [buffer.load() for buffer in self._flat.buffers]):
            self.rebase()

    def gather(self) -> None:
        """Add what x moved since the last look to what is pending."""
        for buffer, base, pending in zip(
            self._flat.buffers, self._base, self.pending, strict=True
        ):
            x = buffer.load()
            if self._is_any:
                np.subtract(x, base, out=base)
                np.add(pending, base, out=pending)
            else:
                np.subtract(x, base, out=pending)
            base[...] = x
        self._is_any = True

    def pushed(self) -> None:
        """Forget what was pending."""
        self._is_any = False

    def rebase(self) -> None:
        """Bring x, which somebody set in the host buffers, to the device; it is no move."""
        for buffer, base in zip(self._flat.buffers, self._base, strict=True):
            buffer.store()
            base[...] = buffer.host

    def state(self) -> list[torch.Tensor]:
        """Return everything, as torch can save it."""
        if not self._is_any:
            for pending in self.pending:
                pending[...] = 0
        return [saved(array) for array in self._base + self.pending]

    def load_state(self, state: list[torch.Tensor]) -> None:
        """Take back what :meth:`state` returned."""
        for mine, kept in zip(self._base + self.pending, state, strict=True):
            _bytes(mine)[...] = kept.numpy()
        self._is_any = True


def _same(one: Sequence[Array], other: Sequence[Array]) -> bool:
    """Compare bit by bit: NaN is what it is."""
    return all(np.array_equal(_bytes(a), _bytes(b)) for a, b in zip(one, other, strict=True))


def _bytes(array: Array) -> NDArray[np.uint8]:
    return array.view(np.uint8)

"""What a worker moved by itself since it last pushed: the difference of its parameters.

x - base, gathered over any local optimizer's steps; base is x as of the last look or fetch.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from smbox_torch.boxes import Array
from smbox_torch.flat import FlatParameters

__all__ = ["Moves"]


class Moves:
    """Moves of a worker that are not pushed yet.

    Args:
        flat: the worker's parameters.

    Attributes:
        pending: per buffer ``[P]``, what is to be pushed.
    """

    def __init__(self, flat: FlatParameters) -> None:
        self._flat = flat
        self._base = [buffer.load().copy() for buffer in flat.buffers]
        self.pending: list[Array] = [np.zeros_like(base) for base in self._base]

    def gather(self) -> None:
        """Add what x moved since the last look to what is pending."""
        for buffer, base, pending in zip(
            self._flat.buffers, self._base, self.pending, strict=True
        ):
            x = buffer.load()
            np.subtract(x, base, out=base)
            np.add(pending, base, out=pending)
            base[...] = x

    def pushed(self) -> None:
        """Forget what was pending."""
        for pending in self.pending:
            pending[...] = 0

    def rebase(self) -> None:
        """Bring x, which somebody set in the host buffers, to the device; it is no move."""
        for buffer, base in zip(self._flat.buffers, self._base, strict=True):
            buffer.store()
            base[...] = buffer.host

    def state(self) -> list[torch.Tensor]:
        """Return everything as bytes, which torch saves whatever the dtype."""
        return [torch.from_numpy(_bytes(a).copy()) for a in self._base + self.pending]

    def load_state(self, state: list[torch.Tensor]) -> None:
        """Take back what :meth:`state` returned."""
        for mine, saved in zip(self._base + self.pending, state, strict=True):
            _bytes(mine)[...] = saved.numpy()


def _bytes(array: Array) -> NDArray[np.uint8]:
    return array.view(np.uint8)

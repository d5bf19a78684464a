"""What the root of a group does for HybridSGD: exchanges with the center, told to the group."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from smbox_torch.easgd import EASGD
from smbox_torch.overlap import Moves

__all__ = ["AtOnce", "HybridRoot"]


class HybridRoot(EASGD):
    """The part of the group's root: its exchange tells the move and leaves x alone."""

    def _remember(self) -> None:
        """Leave it to the group, whose steps come before the root's exchanges."""

    def tell(self, moves: Sequence[torch.Tensor]) -> None:
        """Exchange with the center; the moves of the parameters come back in ``moves``.

        Batch-norm buffers move here alone: the group takes them from its root at each step.
        """
        with torch.no_grad(), self._exchanging(self.exchange_nbytes):
            self._move_buffers(self.moving_rate)
            self.ask([buffer.load() for buffer in self.flat.buffers], moves)


class AtOnce:
    """Exchanges of a root that hides none: each is done when it has begun.

    Args:
        root: whose they are.
    """

    def __init__(self, root: HybridRoot) -> None:
        self._root = root

    def begin(self, moves: Moves) -> None:
        """Do the whole exchange."""
        self._root.tell(moves.tensors)
        moves.tell()

    def finish(self) -> None:
        """Return: it is done."""

    def close(self) -> None:
        """Return: there is no thread."""

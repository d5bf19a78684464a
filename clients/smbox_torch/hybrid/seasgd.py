"""SeasgdRoot: the root of a group in HybridSGD with SEASGD's exchange, as in ShmCaffe-H.

ShmCaffe (ICDCS 2018, DOI 10.1109/ICDCS.2018.00111): the root of a group reads the center Wg,
broadcasts the move dW = moving_rate (W - Wg) to the group, and requests that the memory adds dW
to Wg. Read and add are separate operations: see the bound in ``elastic/stability.py``, where
the groups count as workers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Unpack

import torch

from smbox_torch.adapter import as_array
from smbox_torch.boxes import Array, BoxLike
from smbox_torch.elastic.center_add import CenterAdd, create_increments
from smbox_torch.elastic.stability import warn_if_unstable
from smbox_torch.elastic.unfused import UnfusedExchange
from smbox_torch.hybrid.root import HybridRoot
from smbox_torch.optimizer.options import BoxOptions

__all__ = ["SeasgdRoot"]


class SeasgdRoot(HybridRoot):
    """A root that reads the center, broadcasts the move, and adds it to the center.

    Args:
        optimizer: the inner optimizer.
        box: the memory box.
        name: name of the run.
        period: steps between two exchanges.
        moving_rate: share of the distance that group and center move; None: 0.9 / groups.
        overlap: add on an update thread, while the next gradients are computed.
        increment: name of this group's own increment region; see SEASGD.
        options: model, workers (the groups), rank (of this group), center_dtype, wire.

    Warns:
        StabilityWarning: groups * moving_rate, if given, is above the bound of separate read
            and add.
    """

    is_fused = False

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        box: BoxLike,
        name: str,
        *,
        period: int,
        moving_rate: float | None,
        overlap: bool,
        increment: str | None,
        **options: Unpack[BoxOptions],
    ) -> None:
        super().__init__(
            optimizer, box, name, period=period, moving_rate=moving_rate, **options
        )
        warn_if_unstable(moving_rate, self.workers)
        increments = create_increments(box, self.center, increment)
        self._steps = UnfusedExchange(self.center, increments)
        self._adding = CenterAdd(self._steps, self.recorder, is_hidden=overlap)

    def request_moves(self, xs: Sequence[Array], moves: Sequence[torch.Tensor]) -> None:
        """Read the center, store the moves of x, and begin to add them to the center."""
        self._adding.finish()
        self._steps.read()
        distances = self._steps.distances(xs, self.moving_rate)
        for distance, move in zip(distances, moves, strict=True):
            as_array(move)[...] = distance
        self._adding.begin()

    def wait_for_groups(self, timeout_s: float | None) -> None:
        """Wait for the add in flight, then for the other groups; raises as HybridRoot's."""
        self._adding.finish()
        super().wait_for_groups(timeout_s)

    def _await_exchange(self) -> None:
        """Wait until the center has the last move."""
        self._adding.finish()
        super()._await_exchange()

    def _extra_state(self) -> dict[str, Any]:
        self._adding.finish()
        return super()._extra_state()

    def _end(self) -> None:
        self._adding.close()

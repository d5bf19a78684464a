"""How the ranks of a group move together: parameters maybe hidden, statistics always at once.

A move of statistics that came late could make a variance negative: by then it is not the
one that the center has seen.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from smbox_torch.averaging.box_group import AnyGroup
from smbox_torch.averaging.host_mean import HostMean
from smbox_torch.elastic.overlap import Overlap
from smbox_torch.hybrid.broadcast import GroupBroadcast, open_broadcast
from smbox_torch.hybrid.member import HybridMember
from smbox_torch.hybrid.root import HybridRoot
from smbox_torch.optimizer.stats import Recorder
from smbox_torch.world import World

__all__ = ["GroupExchange"]


class GroupExchange:
    """One rank's end of the exchanges of its group with the center.

    Args:
        role: of this rank in the group.
        group: a process group, a BoxGroup, or None for the ranks of this host.
        name: of the shared memory.
        world: who this process is.
        timeout_s: until a rank that does not answer is given up, in seconds.
        is_hidden: whether the parameters move when the next step begins, not at once.
        mean: of the gradients of the ranks of this host.
    """

    def __init__(
        self,
        role: HybridRoot | HybridMember,
        group: AnyGroup | None,
        name: str,
        world: World,
        timeout_s: float,
        mean: HostMean | None = None,
        *,
        is_hidden: bool,
    ) -> None:
        self._role = role
        self.is_hidden = is_hidden
        flat, means = role.flat_buffers(), role.flat_statistics()
        self.moves = open_broadcast(
            group, name, world, flat, timeout_s, mean=mean, is_hidden=is_hidden
        )
        self._all_moves: list[GroupBroadcast] = [self.moves]
        self._parameters = Overlap(
            flat, self.moves, role.recorder, role.exchanges(is_hidden=is_hidden)
        )
        self._statistics: Overlap | None = None
        if means:
            beside = open_broadcast(group, f"{name}-means", world, means, timeout_s, mean=mean)
            self._all_moves.append(beside)
            self._statistics = Overlap(
                means, beside, Recorder(), role.exchanges_of_statistics()
            )

    @property
    def is_pending(self) -> bool:
        """Whether the parameters have still to move."""
        return self._parameters.is_pending

    def begin(self) -> None:
        """Exchange the statistics, and begin to exchange the parameters."""
        self._parameters.settle()
        if self._statistics is not None:
            self._statistics.begin()
            self._statistics.settle()
        self._parameters.begin()
        if not self.is_hidden:
            self._parameters.settle()

    def settle(self) -> None:
        """Move by what the exchange under way was told."""
        self._parameters.settle()

    def state(self) -> list[torch.Tensor] | None:
        """Return the moves that are not made yet; see Overlap."""
        return self._parameters.state()

    def load_state(self, moves: Sequence[torch.Tensor] | None) -> None:
        """Take moves that are still to be made; see Overlap."""
        self._parameters.load_state(moves)

    def finish(self) -> None:
        """Wait for the exchange under way, if this rank does it; x stays as it is."""
        self._parameters.finish()

    def to_center(self) -> None:
        """Move the whole group to the center; all ranks call it, and then only close."""
        for moves in self._all_moves:
            moves.disable_timeout()
        self._parameters.load_state(self._role.distances())
        self._parameters.settle()
        if self._statistics is not None:
            self._statistics.load_state(self._role.distances_of_statistics())
            self._statistics.settle()

    def close(self) -> None:
        """Leave."""
        self._parameters.close()
        for moves in self._all_moves:
            moves.close()

"""GroupExchange: the exchanges of a group of ranks with the center.

Moves of the parameters may be overlapped with the next gradient. Statistics are moved at once:
the center has not seen the variance of a later forward pass, and a late move could make it
negative.
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

__all__ = ["GroupExchange", "rounding_errors"]


class GroupExchange:
    """The exchanges of a group with the center, on one of its ranks.

    Args:
        role: role of this rank in the group.
        group: a process group, a BoxGroup, or None for the ranks of this host.
        name: name of the shared memory.
        world: rank and size of this process.
        timeout_s: time after which a rank that does not respond is considered lost, in seconds.
        is_hidden: whether the parameters move when the next step begins, not at once.
        mean: the mean of gradients of the ranks of this host, or None.
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
        self._steps = 0
        self.is_hidden = is_hidden
        flat, means = role.flat_buffers(), role.flat_statistics()
        self.broadcast = open_broadcast(
            group, name, world, flat, timeout_s, mean=mean, is_hidden=is_hidden
        )
        self._broadcasts: list[GroupBroadcast] = [self.broadcast]
        self._parameters = Overlap(
            flat, self.broadcast, role.recorder, role.exchanges(is_hidden=is_hidden)
        )
        self._statistics: Overlap | None = None
        if means:
            statistics_broadcast = open_broadcast(
                group, f"{name}-means", world, means, timeout_s, mean=mean
            )
            self._broadcasts.append(statistics_broadcast)
            self._statistics = Overlap(
                means, statistics_broadcast, Recorder(), role.exchanges_of_statistics()
            )

    @property
    def is_pending(self) -> bool:
        """Whether a move of the parameters is pending."""
        return self._parameters.is_pending

    def begin(self, steps: int) -> None:
        """Settle, exchange the statistics, and begin the exchange of the parameters.

        Args:
            steps: number of steps of the group, which the center then contains.
        """
        self.settle()
        self._steps = steps
        if self._statistics is not None:
            self._statistics.begin()
            self._statistics.settle()
        self._parameters.begin()
        if not self.is_hidden:
            self.settle()

    def settle(self) -> None:
        """Wait for the exchange in flight, apply its move, and report its steps."""
        if self.is_pending:
            self._parameters.settle()
            self._role.tell(self._steps)

    def state(self) -> list[torch.Tensor] | None:
        """Return the pending moves; see Overlap."""
        return self._parameters.state()

    def load_state(self, moves: Sequence[torch.Tensor] | None, steps: int) -> None:
        """Replace the pending moves, of the exchange after ``steps``; see Overlap."""
        self._parameters.load_state(moves)
        self._steps = steps

    def finish(self) -> None:
        """Wait for the exchange in flight, if this rank does it; x is not changed."""
        self._parameters.finish()

    def to_center(self) -> None:
        """Move all ranks to the center; all ranks call it, and then only ``close``."""
        for broadcast in self._broadcasts:
            broadcast.disable_timeout()
        # x - (x - c) may differ from c by rounding. From there, the same move is exact: the
        # difference of close numbers is (Sterbenz's lemma).
        for _ in range(2):
            self._parameters.load_state(self._role.distances())
            self._parameters.settle()
            if self._statistics is not None:
                self._statistics.load_state(self._role.distances_of_statistics())
                self._statistics.settle()

    def close(self) -> None:
        """Close exchanges and broadcasts."""
        self._parameters.close()
        for broadcast in self._broadcasts:
            broadcast.close()


def rounding_errors(role: HybridRoot | HybridMember) -> list[torch.Tensor]:
    """Return the rounding errors of a rank's master values, which all ranks have in common.

    Those of a root that begins with an existing center are not zero.
    """
    masters = [each.master for each in (*role.flat_buffers(), *role.flat_statistics())]
    return [each.rounding_error for each in masters if each.rounding_error is not None]

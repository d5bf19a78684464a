"""HybridRoot: the root of a group in HybridSGD, which exchanges with the center."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from smbox.errors import ConfigError
from smbox_torch.adapter import as_array
from smbox_torch.boxes import Array, BoxLike
from smbox_torch.elastic.easgd import EASGD
from smbox_torch.elastic.overlap import Broadcast, Exchange, ThreadedExchange
from smbox_torch.model.flat import FlatBuffer
from smbox_torch.optimizer.center import Center
from smbox_torch.world import World

__all__ = ["HybridRoot", "address_bytes", "groups_of"]

ADDRESS_NBYTES = 1 << 16
"""Of the addresses of 1000 nodes or more."""


def address_bytes(box: BoxLike | None) -> torch.Tensor:
    """Return the address of a box as ``u8[ADDRESS_NBYTES]``; zeros if none fits."""
    text = str(getattr(box, "address", "")).encode()
    row = np.zeros(ADDRESS_NBYTES, np.uint8)
    if len(text) <= ADDRESS_NBYTES:
        row[: len(text)] = [*text]
    return torch.from_numpy(row)


class HybridRoot(EASGD):
    """The root of a group: its exchange publishes the move and does not change x."""

    shares_counts = False  # the counts of the other ranks would not change

    def _remember(self) -> None:
        """Return: HybridSGD records the checksum, because its steps precede exchanges."""

    def prepare(self) -> Sequence[Array]:
        """Return x; raise if it cannot be exchanged. Statistics are exchanged separately."""
        self._begin_exchange()
        return [buffer.load() for buffer in self.flat.buffers]

    def flat_buffers(self) -> Sequence[FlatBuffer]:
        """Return the parameters."""
        return self.flat.buffers

    def flat_statistics(self) -> Sequence[FlatBuffer]:
        """Return the batch-norm statistics; empty without ``model=``."""
        return () if self.buffers is None else self.buffers.flat.buffers

    def publish_parameters(self, moves: Sequence[torch.Tensor]) -> None:
        """Exchange the parameters with the center and store their moves in ``moves``."""
        with torch.no_grad(), self._exchanging(self.exchange_nbytes):
            self.request_moves([buffer.load() for buffer in self.flat.buffers], moves)

    def publish_statistics(self, moves: Sequence[torch.Tensor]) -> None:
        """Exchange the statistics with the center and store their moves in ``moves``."""
        self._begin_exchange()
        for (buffer, region), move in zip(self.buffers or (), moves, strict=True):
            region.elastic(buffer.load(), self.moving_rate, delta=as_array(move))

    def exchanges(self, *, is_hidden: bool) -> Exchange:
        """Return the exchange of parameters: immediate, or on an update thread."""
        return (
            ThreadedExchange(self) if is_hidden else ImmediateExchange(self.publish_parameters)
        )

    def exchanges_of_statistics(self) -> Exchange:
        """Return the exchange of the statistics."""
        return ImmediateExchange(self.publish_statistics)

    def check_others(self) -> None:
        """Raise ConfigError if other parameters of the model differ between the groups."""
        self._demand_equal_others()

    def take_center(self) -> None:
        """Set the model of this rank to the center."""
        self._take_center()

    def tell(self, steps: int) -> None:
        """Report the steps of the group, which the center contains; raises like ``check``."""
        self._note_shared(steps)

    def wait_for_groups(self, timeout_s: float | None) -> None:
        """Wait for the other groups.

        Raises:
            RequestTimeoutError: a group did not arrive; the error names its root.
        """
        self.team.finish(timeout_s)

    def distances(self) -> list[torch.Tensor]:
        """Return the moves that bring the parameters to the center."""
        return _distances(self.center)

    def distances_of_statistics(self) -> list[torch.Tensor]:
        """Return the moves that bring the statistics to the center."""
        return [] if self.buffers is None else _distances(self.buffers)

    def load_state_dict(self, state_dict: dict[str, Any], *, force: bool = False) -> None:
        """Resume from the ``state_dict`` of a rank.

        The state of a member has no center: the center is set to the parameters. Steps that
        were not exchanged are left to every group that loads the state.
        """
        state_dict = {**state_dict, "rank": self.rank}
        if not state_dict.get("centers", True):
            centers = [state_dict["parameters"], state_dict["buffers"]]
            state_dict = {**state_dict, "centers": [each for each in centers if each]}
        super().load_state_dict(state_dict, force=force)

    def _load_extra_state(self, extra: dict[str, Any]) -> None:
        """Return: the exchange of the group loads the moves."""


def _distances(center: Center) -> list[torch.Tensor]:
    return [
        buffer.master.values().cpu() - values
        for buffer, values in zip(center.flat.buffers, center.values().values(), strict=True)
    ]


class ImmediateExchange:
    """Exchanges without overlap: ``begin`` does the entire exchange.

    Args:
        publish: function that exchanges and stores the moves.
    """

    busy = False

    def __init__(self, publish: Callable[[Sequence[torch.Tensor]], None]) -> None:
        self._publish = publish

    def begin(self, broadcast: Broadcast) -> None:
        """Do the entire exchange."""
        self._publish(broadcast.tensors)
        broadcast.publish()

    def finish(self) -> None:
        """Return: the exchange is done."""

    def close(self) -> None:
        """Return: there is no thread."""


def groups_of(world: World, group: dist.ProcessGroup | None, *, is_needed: bool) -> int:
    """Return the number of groups: of hosts, or of process groups if ``group`` is given.

    Raises:
        ConfigError: the number is needed and unknown.
    """
    ranks = world.local_world_size if group is None else dist.get_world_size(group)
    every = world.world_size if group is None else dist.get_world_size()
    if ranks == every:
        return 1
    if group is None and world.group_world_size is not None:
        return world.group_world_size
    if is_needed:
        raise ConfigError(
            "the number of groups is unknown, and the default moving_rate of seasgd depends on"
            " it: pass groups= or moving_rate=, or set GROUP_WORLD_SIZE to the number of hosts",
            world_size=every,
            ranks_here=ranks,
        )
    return 1

"""The part of a group's root in HybridSGD: it exchanges with the center."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist

from smbox.errors import ConfigError
from smbox_torch.adapter import as_array
from smbox_torch.boxes import Array, BoxLike
from smbox_torch.elastic.easgd import EASGD
from smbox_torch.elastic.overlap import Exchange, Moves, ThreadedExchange
from smbox_torch.model.flat import FlatBuffer
from smbox_torch.optimizer.center import Center
from smbox_torch.world import World

__all__ = ["HybridRoot", "address_bytes", "groups_of"]

ADDRESS_NBYTES = 256


def address_bytes(box: BoxLike | None) -> torch.Tensor:
    """Return the address of a box as ``u8[ADDRESS_NBYTES]``; zeros where there is none."""
    text = str(getattr(box, "address", "")).encode()[:ADDRESS_NBYTES]
    return torch.tensor([*text, *bytes(ADDRESS_NBYTES - len(text))], dtype=torch.uint8)


class HybridRoot(EASGD):
    """The part of the group's root: its exchange tells the move and leaves x alone."""

    shares_counts = False  # those of its ranks would stay behind

    def _remember(self) -> None:
        """Leave it to the group, whose steps come before the root's exchanges."""

    def prepare(self) -> Sequence[Array]:
        """Return x, or raise where it cannot be exchanged; statistics are the group's."""
        self.team.check()
        self._demand_exchangeable()
        return [buffer.load() for buffer in self.flat.buffers]

    def flat_buffers(self) -> Sequence[FlatBuffer]:
        """Return the parameters."""
        return self.flat.buffers

    def flat_statistics(self) -> Sequence[FlatBuffer]:
        """Return the batch-norm statistics, none without ``model=``."""
        return () if self.buffers is None else self.buffers.flat.buffers

    def publish_parameters(self, moves: Sequence[torch.Tensor]) -> None:
        """Exchange with the center; the moves of the parameters come back in ``moves``."""
        with torch.no_grad(), self._exchanging(self.exchange_nbytes):
            self.request_moves([buffer.load() for buffer in self.flat.buffers], moves)

    def publish_statistics(self, moves: Sequence[torch.Tensor]) -> None:
        """Exchange the statistics, with moves of their own."""
        self.prepare()
        self.phase.use()
        for (buffer, region), move in zip(self.buffers or (), moves, strict=True):
            region.elastic(buffer.load(), self.moving_rate, delta=as_array(move))

    def exchanges(self, *, is_hidden: bool) -> Exchange:
        """Return how the root exchanges: at once, or hidden on an update thread."""
        return (
            ThreadedExchange(self) if is_hidden else ImmediateExchange(self.publish_parameters)
        )

    def exchanges_of_statistics(self) -> Exchange:
        """Return how the root exchanges the statistics."""
        return ImmediateExchange(self.publish_statistics)

    def take_center(self) -> None:
        """Set the model of this rank to the center."""
        self._take_center()

    def wait_for_groups(self, timeout_s: float | None) -> None:
        """Wait for the other groups.

        Raises:
            RequestTimeoutError: a group did not come; the error names its root.
        """
        self.team.finish(timeout_s)

    def distances(self) -> list[torch.Tensor]:
        """Return the moves of the parameters that lead to the center."""
        return _distances(self.center)

    def distances_of_statistics(self) -> list[torch.Tensor]:
        """Return those of the statistics."""
        return [] if self.buffers is None else _distances(self.buffers)

    def load_state_dict(self, state_dict: dict[str, Any], *, force: bool = False) -> None:
        """Go on where a rank's ``state_dict`` was taken.

        A member's has no center: the center becomes the parameters.
        """
        if not state_dict.get("centers", True):
            centers = [state_dict["parameters"], state_dict["buffers"]]
            state_dict = {**state_dict, "centers": [each for each in centers if each]}
        super().load_state_dict(state_dict, force=force)


def _distances(center: Center) -> list[torch.Tensor]:
    return [
        buffer.master.values().cpu() - values
        for buffer, values in zip(center.flat.buffers, center.values().values(), strict=True)
    ]


class ImmediateExchange:
    """Exchanges of a root that hides none: each is done when it has begun.

    Args:
        publish: exchanges, and fills in the moves.
    """

    def __init__(self, publish: Callable[[Sequence[torch.Tensor]], None]) -> None:
        self._publish = publish

    def begin(self, moves: Moves) -> None:
        """Do the whole exchange."""
        self._publish(moves.tensors)
        moves.publish()

    def finish(self) -> None:
        """Return: it is done."""

    def close(self) -> None:
        """Return: there is no thread."""


def groups_of(world: World, group: dist.ProcessGroup | None, *, is_needed: bool) -> int:
    """Return how many groups there are: hosts, or process groups where one takes their place.

    Raises:
        ConfigError: it is needed and nobody told.
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

"""Parts in a group of HybridSGD: its root exchanges with the center, members hear of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Unpack

import torch
import torch.distributed as dist

import smbox
from smbox.errors import ConfigError
from smbox_torch.adapter import as_array
from smbox_torch.boxes import BoxLike
from smbox_torch.center import Center
from smbox_torch.easgd import EASGD
from smbox_torch.filling import Filling
from smbox_torch.flat import FlatBuffer, FlatParameters, float_buffers, other_buffers
from smbox_torch.matching import names_of
from smbox_torch.options import BoxOptions
from smbox_torch.overlap import Exchange, Moves, ThreadedExchange
from smbox_torch.precision import Precision
from smbox_torch.restoring import restore
from smbox_torch.stats import Recorder
from smbox_torch.world import World

__all__ = ["HybridMember", "HybridRoot", "address_bytes", "groups_of"]

ADDRESS_NBYTES = 256


def address_bytes(box: BoxLike | None) -> torch.Tensor:
    """Return the address of a box as ``u8[ADDRESS_NBYTES]``; zeros where there is none."""
    text = str(getattr(box, "address", "")).encode()[:ADDRESS_NBYTES]
    return torch.tensor([*text, *bytes(ADDRESS_NBYTES - len(text))], dtype=torch.uint8)


class HybridRoot(EASGD):
    """The part of the group's root: its exchange tells the move and leaves x alone."""

    def _remember(self) -> None:
        """Leave it to the group, whose steps come before the root's exchanges."""

    def prepare(self) -> None:
        """Raise where x cannot be exchanged; the group exchanges the statistics itself."""
        self.team.check()
        self._demand_exchangeable()

    def flat_buffers(self) -> Sequence[FlatBuffer]:
        """Return the parameters."""
        return self.flat.buffers

    def flat_statistics(self) -> Sequence[FlatBuffer]:
        """Return the batch-norm statistics, none without ``model=``."""
        return () if self.buffers is None else self.buffers.flat.buffers

    def tell(self, moves: Sequence[torch.Tensor]) -> None:
        """Exchange with the center; the moves of the parameters come back in ``moves``."""
        with torch.no_grad(), self._exchanging(self.exchange_nbytes):
            self.ask([buffer.load() for buffer in self.flat.buffers], moves)

    def tell_statistics(self, moves: Sequence[torch.Tensor]) -> None:
        """Exchange the statistics, with moves of their own."""
        self.prepare()
        self.phase.use()
        for (buffer, region), move in zip(self.buffers or (), moves, strict=True):
            region.elastic(buffer.load(), self.moving_rate, delta=as_array(move))

    def exchanges(self, *, is_hidden: bool) -> Exchange:
        """Return how the root exchanges: at once, or hidden on an update thread."""
        return ThreadedExchange(self) if is_hidden else AtOnce(self.tell)

    def exchanges_of_statistics(self) -> Exchange:
        """Return how the root exchanges the statistics."""
        return AtOnce(self.tell_statistics)

    def meet(self, timeout_s: float) -> None:
        """Wait for the other groups.

        Raises:
            RequestTimeoutError: a group did not come; the error names its root.
        """
        self.team.meet("finish", timeout_s)

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


class AtOnce:
    """Exchanges of a root that hides none: each is done when it has begun.

    Args:
        tell: exchanges, and fills in the moves.
    """

    def __init__(self, tell: Callable[[Sequence[torch.Tensor]], None]) -> None:
        self._tell = tell

    def begin(self, moves: Moves) -> None:
        """Do the whole exchange."""
        self._tell(moves.tensors)
        moves.tell()

    def finish(self) -> None:
        """Return: it is done."""

    def close(self) -> None:
        """Return: there is no thread."""


class HybridMember:
    """The part of any other rank; it reads the center when it is asked for it.

    Args:
        optimizer: the one inside.
        box: of this rank; None: one is connected when it is first needed.
        name: of the run.
        address: of the root's box, as ``address_bytes`` of the root tells it.
        options: model, center_dtype and wire, as the root's.

    Attributes:
        steps: of the group.
        recorder: counts what this rank waited for.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        box: BoxLike | None,
        name: str,
        address: torch.Tensor,
        **options: Unpack[BoxOptions],
    ) -> None:
        model = options.get("model")
        precision = Precision(options.get("center_dtype", "float32"), options.get("wire"))
        self.inner = optimizer
        self.steps = 0
        self.recorder = Recorder()
        self._name = name
        self._model = model
        self._names = names_of(optimizer, model)
        members = (p for each in optimizer.param_groups for p in each["params"])
        self._parameters = FlatParameters(members, precision=precision)
        means = [] if model is None else float_buffers(model)
        self._statistics = FlatParameters(means, precision=precision) if means else None
        self._counts = [] if model is None else other_buffers(model)
        self._box = box
        self._address = address
        self._own_box: smbox.Box | None = None

    def flat_buffers(self) -> Sequence[FlatBuffer]:
        """Return the parameters."""
        return self._parameters.buffers

    def flat_statistics(self) -> Sequence[FlatBuffer]:
        """Return the batch-norm statistics, none without ``model=``."""
        return () if self._statistics is None else self._statistics.buffers

    def center_into(self, model: torch.nn.Module) -> None:
        """Copy the center into a model.

        Raises:
            ConfigError: the parameters differ, or the root's box has no address.
            ConnectError: the root's memory node cannot be reached from here.
        """
        box, filling = self._connected(), Filling(model, self._names)
        center = Center(box, self._name, self._parameters, leads=False)
        filling.parameters(center, groups=len(self.inner.param_groups))
        if self._statistics is not None:
            filling.statistics(
                Center(box, f"{self._name}.buffers", self._statistics, leads=False)
            )
        if self._model is not None:
            filling.counts(self._model)
        filling.fill()

    def exchanges(self, *, is_hidden: bool) -> None:
        """Return None: a member only hears of exchanges."""

    def exchanges_of_statistics(self) -> None:
        """Return None, likewise."""

    def meet(self, timeout_s: float) -> None:
        """Return: the root waits, and this rank for the root."""

    def distances(self) -> list[torch.Tensor]:
        """Return no moves: the root tells them."""
        return []

    distances_of_statistics = distances

    def _connected(self) -> BoxLike:
        if self._box is not None:
            return self._box
        if self._own_box is None:
            address = bytes(self._address.tolist()).rstrip(b"\0").decode()
            if not address:
                raise ConfigError("the root's box has no address: give every rank a box")
            self._own_box = smbox.connect(address)
        return self._own_box

    def state_dict(self) -> dict[str, Any]:
        """Return what a root's does, without the center."""
        return {
            "algorithm": HybridRoot.__name__,
            "steps": self.steps,
            "inner": self.inner.state_dict(),
            "parameters": self._parameters.values(),
            "buffers": {} if self._statistics is None else self._statistics.values(),
            "counts": [count.detach().cpu().clone() for count in self._counts],
            "centers": [],
            "extra": {},
        }

    def load_state_dict(
        self,
        state_dict: dict[str, Any],
        *,
        force: bool = False,  # noqa: ARG002 - the center is the root's to restore
    ) -> None:
        """Go on where a rank's ``state_dict`` was taken."""
        self.inner.load_state_dict(state_dict["inner"])
        restore(state_dict, self._parameters, self._statistics, self._counts)
        self.steps = state_dict["steps"]

    def close(self, *, exchange: bool = False) -> None:  # noqa: ARG002 - the root's to do
        """Close the connection that was made here."""
        if self._own_box is not None:
            self._own_box.close()
            self._own_box = None


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
            "the number of groups is unknown, and the default moving_rate is 0.9 / groups: pass"
            " groups= (or moving_rate=), or set GROUP_WORLD_SIZE to the number of hosts",
            world_size=every,
            ranks_here=ranks,
        )
    return 1

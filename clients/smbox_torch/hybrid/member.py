"""HybridMember: a rank of a group in HybridSGD other than the root; it receives moves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Unpack

import torch

import smbox
from smbox.errors import ConfigError
from smbox_torch.boxes import BoxLike, check_box
from smbox_torch.checks import check_model
from smbox_torch.model.buffers import count_buffers, float_buffers, other_buffers
from smbox_torch.model.flat import FlatBuffer, FlatParameters
from smbox_torch.model.matching import names_of
from smbox_torch.model.precision import Precision
from smbox_torch.model.restoring import check_same_model, restore
from smbox_torch.model.worker_values import WorkerValues
from smbox_torch.optimizer.center import Center
from smbox_torch.optimizer.center_copy import CenterCopy
from smbox_torch.optimizer.checkpoint import checkpoint, load_inner
from smbox_torch.optimizer.options import BoxOptions
from smbox_torch.optimizer.stats import Recorder

__all__ = ["HybridMember"]


class HybridMember:
    """A member of a group; it reads the center only for an evaluation.

    Args:
        optimizer: the inner optimizer.
        box: the box of this rank; None: the rank connects to the root's node when needed.
        name: name of the run.
        address: address of the root's box, as from ``address_bytes`` on the root.
        algorithm: name of the algorithm in a state of the root.
        options: model, center_dtype and wire, as on the root.

    Attributes:
        own: the worker's own values, also during an evaluation.
        steps: number of steps of the group.
        recorder: counts the time that this rank waited.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        box: BoxLike | None,
        name: str,
        address: torch.Tensor,
        algorithm: str,
        **options: Unpack[BoxOptions],
    ) -> None:
        if box is not None:
            check_box(box)
        model = options.get("model")
        check_model(model, optimizer)
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
        self._other_buffers = [] if model is None else other_buffers(model)
        flats = (self._parameters, self._statistics)
        self.own = WorkerValues([flat for flat in flats if flat is not None])
        self._box = box
        self._address = address
        self._algorithm = algorithm
        self._own_box: smbox.Box | None = None

    def flat_buffers(self) -> Sequence[FlatBuffer]:
        """Return the parameters."""
        return self._parameters.buffers

    def flat_statistics(self) -> Sequence[FlatBuffer]:
        """Return the batch-norm statistics; empty without ``model=``."""
        return () if self._statistics is None else self._statistics.buffers

    def center_into(self, model: torch.nn.Module) -> None:
        """Copy the center into a model.

        Raises:
            ConfigError: the parameters differ, or the root's box has no address, or too long a
                one.
            ConnectError: the root's memory node cannot be reached from here.
        """
        filling = CenterCopy(model, self._names)
        center, *beside = self._centers()
        groups = len(self.inner.param_groups)
        filling.parameters(center.flat.tensors, center.tensors(), groups=groups)
        for each in beside:
            filling.statistics(each.flat.tensors, each.tensors())
        if self._model is not None:
            filling.counts(count_buffers(self._model))
        filling.others(self._model, self._parameters.tensors)
        filling.fill()

    def check_others(self) -> None:
        """Return: all ranks of the group began with the other parameters of the root."""

    def take_center(self) -> None:
        """Set the model of this rank to the center; raises as ``center_into``."""
        for center in self._centers():
            center.take()

    def _centers(self) -> list[Center]:
        """Return the center of the parameters and, if there is one, that of the statistics."""
        box = self._connected()
        found = [Center(box, self._name, self._parameters, loads=False)]
        if self._statistics is not None:
            found.append(Center(box, f"{self._name}.buffers", self._statistics, loads=False))
        return found

    def exchanges(self, *, is_hidden: bool) -> None:
        """Return None: a member only receives moves."""

    def exchanges_of_statistics(self) -> None:
        """Return None: a member only receives moves."""

    def tell(self, steps: int) -> None:
        """Return: the root reports the steps of the group."""

    def wait_for_groups(self, timeout_s: float | None) -> None:
        """Return: the root waits for the groups, and this rank waits for the root."""

    def distances(self) -> list[torch.Tensor]:
        """Return an empty list: the root broadcasts the moves."""
        return []

    distances_of_statistics = distances

    def _connected(self) -> BoxLike:
        if self._box is not None:
            return self._box
        if self._own_box is None:
            address = bytes(self._address.tolist()).rstrip(b"\0").decode()
            if not address:
                raise ConfigError(
                    "the root's box has no address, or too long a one: give every rank a box"
                )
            self._own_box = smbox.connect(address)
        return self._own_box

    def state_dict(self) -> dict[str, Any]:
        """Return the same state as the root, without the center."""
        own = self.own.values()
        return checkpoint(
            self._algorithm,
            rank=0,  # HybridSGD sets the rank
            steps=self.steps,
            inner=self.inner.state_dict(),
            parameters=own[0],
            buffers={} if self._statistics is None else own[1],
            counts=[each.detach().cpu().clone() for each in self._other_buffers],
            shapes=self._parameters.shapes,
        )

    def load_state_dict(
        self,
        state_dict: dict[str, Any],
        *,
        force: bool = False,  # noqa: ARG002 - the root restores the center
    ) -> None:
        """Resume from the ``state_dict`` of a rank."""
        check_same_model(state_dict, self._parameters, self._statistics, self._other_buffers)
        load_inner(self.inner, state_dict["inner"])
        self.own.restore()
        restore(state_dict, self._parameters, self._statistics, self._other_buffers)
        self.steps = state_dict["steps"]

    def close(self, *, exchange: bool = False) -> None:  # noqa: ARG002 - the root exchanges
        """Close the box if this rank connected it."""
        if self._own_box is not None:
            self._own_box.close()
            self._own_box = None

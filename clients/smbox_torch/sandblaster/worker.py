"""Sandblaster L-BFGS: a worker, which computes losses and gradients of portions."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

from smbox.errors import ConfigError
from smbox.head import check_prefix
from smbox_torch.boxes import check_box
from smbox_torch.checks import check_parameters, seconds, whole
from smbox_torch.model.flat import FlatBuffer, FlatParameters
from smbox_torch.sandblaster.tickets import Tickets

__all__ = ["SandblasterWorker", "only_buffer"]


class SandblasterWorker:
    """A worker of a run: it computes losses and gradients of portions until the run ends.

    Args:
        box: the worker's own connection to the memory.
        parameters: of its model: shapes and dtype as the coordinator's. Values come from x.
        name: of the run.
        rank: of this worker; no other process has it at the same time.
        timeout_s: how long the coordinator may be silent, or not be there yet.

    Attributes:
        computed: portions that it has computed.

    Raises:
        TypeError, LimitError: no run can have this name; nothing was made.
        ConfigError: parameters of several dtypes, of 16 bits, or not those of the run; or the
            run has no worker of this rank.
        RegionNotFoundError: there was no coordinator in time, or it has just ended the run.
    """

    def __init__(
        self,
        box: Any,
        parameters: Iterable[torch.Tensor],
        name: str = "sandblaster",
        *,
        rank: int,
        timeout_s: float = 300.0,
    ) -> None:
        check_box(box)
        check_prefix(name)
        rank, timeout_s = whole("rank", rank, least=0), seconds("timeout_s", timeout_s)
        self.computed = 0
        self._flat = only_buffer(parameters, gradients=True)
        self._tickets = Tickets(box, name, rank, timeout_s)
        self._x = box.attach(f"{name}.x")
        self._round = 0
        own = (self._flat.size,), self._flat.dtype
        if own != (self._x.shape, str(self._x.dtype)):
            raise ConfigError(
                "the worker's parameters are not those of the run", worker=own, name=name
            )

    def run(self, loss_of: Callable[[int], torch.Tensor]) -> None:
        """Compute portions until the coordinator ends the run.

        Args:
            loss_of: returns the loss of a portion, 0 to portions - 1, at the parameters; f is
                the sum over all portions. Every worker returns the same for the same portion.

        Raises:
            WorkerLostError: the coordinator died, or left without ending the run.
            RequestTimeoutError: the coordinator was silent for too long.
        """
        while (ticket := self._tickets.draw()) is not None:
            if ticket.round != self._round:
                self._x.get(out=self._flat.host)
                self._flat.store()
                self._round = ticket.round
            self._flat.zero_gradients()
            loss = loss_of(ticket.portion)
            torch.autograd.backward(loss)
            self._flat.attach_gradients()
            self.computed += 1
            assert self._flat.gradient is not None, "attached"
            if not self._tickets.deliver(ticket, self._flat.gradient.cpu(), loss.item()):
                return


def only_buffer(parameters: Iterable[torch.Tensor], *, gradients: bool = False) -> FlatBuffer:
    """Return the parameters as one flat buffer; ConfigError: they are of several dtypes."""
    members = tuple(parameters)
    check_parameters(members)
    flat = FlatParameters(members, gradients=gradients)
    if len(flat.buffers) > 1:
        raise ConfigError(
            "L-BFGS has one vector of parameters: convert the model to one dtype",
            dtypes=[buffer.dtype for buffer in flat.buffers],
        )
    return flat.buffers[0]

"""SandblasterWorker: computes losses and gradients of portions for Sandblaster L-BFGS."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

from smbox.errors import ConfigError
from smbox_torch.boxes import check_box
from smbox_torch.checks import check_parameters, seconds, whole
from smbox_torch.model.flat import FlatBuffer, FlatParameters
from smbox_torch.sandblaster.tickets import Tickets
from smbox_torch.workers.claim import check_run_name

__all__ = ["SandblasterWorker", "single_buffer"]


class SandblasterWorker:
    """A worker of a Sandblaster run, which computes losses and gradients of portions.

    Args:
        box: the worker's own connection to the memory.
        parameters: parameters of the worker's model, with the coordinator's shapes and dtype.
            Their values are replaced by x.
        name: name of the run.
        rank: rank of this worker. No other living process may have it.
        timeout_s: longest wait for the coordinator to start or to make progress, in seconds.

    Attributes:
        computed: number of portions computed.

    Raises:
        TypeError, LimitError: the name is not valid; no region was created.
        ConfigError: the parameters have several dtypes, 16 bits, or another size or dtype than
            the run's; or the run has no worker of this rank.
        RegionNotFoundError: no coordinator started in time, or it has just ended the run.
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
        check_run_name(name)
        rank, timeout_s = whole("rank", rank, least=0), seconds("timeout_s", timeout_s)
        self.computed = 0
        self._flat = single_buffer(parameters, gradients=True)
        self._tickets = Tickets(box, name, rank, timeout_s)
        self._x = box.attach(f"{name}.x")
        self._round = 0
        own = (self._flat.size,), self._flat.dtype
        if own != (self._x.shape, str(self._x.dtype)):
            raise ConfigError(
                "the worker's parameters differ from those of the run in size or dtype",
                worker=own,
                name=name,
            )

    def run(self, loss_of: Callable[[int], torch.Tensor]) -> None:
        """Compute portions until the coordinator ends the run.

        Args:
            loss_of: function that returns the loss of a portion, from 0 to portions - 1, at the
                model's parameters. The objective f is the sum over all portions. It must return
                the same value for the same portion on every worker.

        Raises:
            WorkerLostError: the coordinator died, or left without ending the run.
            RequestTimeoutError: the coordinator made no progress within ``timeout_s``.
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


def single_buffer(parameters: Iterable[torch.Tensor], *, gradients: bool = False) -> FlatBuffer:
    """Return the parameters as one flat buffer; ConfigError if they have several dtypes."""
    members = tuple(parameters)
    check_parameters(members)
    flat = FlatParameters(members, gradients=gradients)
    if len(flat.buffers) > 1:
        raise ConfigError(
            "L-BFGS needs all parameters in one dtype: convert the model to one dtype",
            dtypes=[buffer.dtype for buffer in flat.buffers],
        )
    return flat.buffers[0]

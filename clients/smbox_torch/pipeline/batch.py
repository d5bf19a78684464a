"""One batch at one stage of a pipeline: forwards and backwards of its micro-batches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from smbox.errors import ConfigError, LayoutMismatchError
from smbox_torch.adapter import dtype_name
from smbox_torch.pipeline.agreement import device_of
from smbox_torch.pipeline.building import Parts
from smbox_torch.pipeline.ring import Header
from smbox_torch.pipeline.schedule import Task

__all__ = ["Batch", "Loss", "sizes_of"]

Loss = Callable[[torch.Tensor, torch.Tensor], Any]
"""Of outputs and targets of a micro-batch: a mean over the rows, a tensor of one element."""


def sizes_of(rows: int, micro_batches: int) -> list[int]:
    """Return the rows of each micro-batch: as equal as can be, the larger first, none empty.

    ``torch.tensor_split`` cuts a batch alike.
    """
    count = min(rows, micro_batches)
    return [rows // count + (number < rows % count) for number in range(count)]


class _Received(torch.autograd.Function):
    """Activations that came in: no leaf, so that a stage may begin with an operation in place.

    The gradient goes into a list, and to nobody else.
    """

    @staticmethod
    def forward(
        ctx: Any,
        anchor: torch.Tensor,  # noqa: ARG004 - it wants a gradient, so that there is a graph
        data: torch.Tensor,
        gradients: list[torch.Tensor],
    ) -> torch.Tensor:
        ctx.gradients = gradients
        return data.detach()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[None, None, None]:
        ctx.gradients.extend(gradients)
        return None, None, None


class Batch:
    """Computes one batch.

    Args:
        parts: of the stage.
        number: of the batch, from 0.
        rows: of the batch.
        micro_batches: into how many it is cut, at most.
        inputs: the batch, at the first stage.

    Attributes:
        sizes: rows of each micro-batch.
        held_max: most micro-batches that were kept for their backward at once.
    """

    def __init__(
        self,
        parts: Parts,
        number: int,
        rows: int,
        micro_batches: int,
        inputs: torch.Tensor | None,
    ) -> None:
        self.sizes = sizes_of(rows, micro_batches)
        self.held_max = 0
        self._parts = parts
        self._number = number
        self._rows = rows
        self._inputs = None if inputs is None else torch.split(inputs, self.sizes)
        self._targets: Sequence[torch.Tensor] = ()
        self._loss: Loss | None = None
        self._is_training = False
        self._losses = [0.0] * len(self.sizes)
        self._held: dict[int, torch.Tensor] = {}
        self._gradients: dict[int, list[torch.Tensor]] = {}
        self._device = device_of(parts.module)

    @property
    def loss(self) -> float:
        """The loss of the batch: the weighted sum of the micro-batches', in their order."""
        return sum(self._losses)

    def outputs(self) -> torch.Tensor | None:
        """Compute all forwards, without gradients; return the outputs at the last stage."""
        each = [self._forward(number) for number in range(len(self.sizes))]
        return torch.cat(each) if self._parts.behind is None else None

    def train(
        self, tasks: Sequence[Task], targets: torch.Tensor | None, loss: Loss | None
    ) -> None:
        """Compute forwards and backwards; gradients are added to those that are there.

        Args:
            tasks: in this order.
            targets: at the last stage, one for each row.
            loss: at the last stage.
        """
        self._is_training = True
        if targets is not None:
            self._targets = torch.split(targets, self.sizes)
        self._loss = loss
        for task in tasks:
            if task.kind == "forward":
                self._held[task.micro_batch] = self._forward(task.micro_batch)
                self.held_max = max(self.held_max, len(self._held))
            else:
                self._backward(task.micro_batch, self._held.pop(task.micro_batch))

    def _forward(self, number: int) -> torch.Tensor:
        """Return what came out: at the last stage in training the loss."""
        behind = self._parts.behind
        y = self._output(self._parts.module(self._input(number)), self.sizes[number])
        if behind is not None:
            behind.writer.send(self._header(number, wants_gradient=y.requires_grad), y)
        elif self._is_training:
            y = self._weighted(number, y)
        return y

    def _output(self, y: object, rows: int) -> torch.Tensor:
        """Return what the module made, if it is what the stages agreed on."""
        behind = self._parts.behind
        found = type(y).__name__
        if isinstance(y, torch.Tensor):
            if y.dim() and len(y) == rows and (behind is None or behind.writer.spec.fits(y)):
                return y
            found = f"{dtype_name(y.dtype)}{list(y.shape)}"
        raise LayoutMismatchError(
            "this stage's output is not what the stages agreed on: build the pipeline"
            " under the same autocast and in the same mode, and let the shape depend on nothing"
            " else",
            agreed="a tensor" if behind is None else str(behind.writer.spec),
            rows=rows,
            found=found,
        )

    def _input(self, number: int) -> torch.Tensor:
        """Return what a micro-batch begins with here."""
        before = self._parts.before
        if before is None:
            assert self._inputs is not None
            return self._inputs[number]
        header, x = before.reader.receive(self._device)
        if not header.wants_gradient:
            return x
        gradients = self._gradients[number] = []
        anchor = torch.zeros((), requires_grad=True)
        found: torch.Tensor = _Received.apply(anchor, x, gradients)  # type: ignore[no-untyped-call]
        return found

    def _weighted(self, number: int, y: torch.Tensor) -> torch.Tensor:
        """Return the share of a micro-batch in the loss of the batch."""
        assert self._loss is not None
        loss = self._loss(y, self._targets[number])
        if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
            raise ConfigError("loss= returns the mean over the rows, a tensor of one element")
        if not loss.requires_grad:
            raise ConfigError(
                "loss= depends on nothing that wants a gradient: compute it without"
                " torch.no_grad(), detach() and item(), and leave a parameter unfrozen;"
                " forward() computes outputs alone"
            )
        share: torch.Tensor = loss * (self.sizes[number] / self._rows)
        self._losses[number] = float(share.detach())
        return share

    def _backward(self, number: int, y: torch.Tensor) -> None:
        """Compute gradients, and hand back that of the input where a stage before wants it.

        As in one process, what the loss does not depend on gets no gradient, not even zeros.
        """
        before, behind = self._parts.before, self._parts.behind
        if behind is None:
            torch.autograd.backward(y)
        else:
            header, gradient = behind.reader.receive(self._device)
            self._losses[number] = header.loss
            if header.rows:
                torch.autograd.backward(y, gradient)
        if before is not None:
            found = self._gradients.pop(number, [])
            back = found[0] if found else None
            before.writer.send(self._header(number, has_tensor=bool(found)), back)

    def _header(
        self, number: int, *, wants_gradient: bool = False, has_tensor: bool = True
    ) -> Header:
        return Header(
            batch=self._number,
            is_training=self._is_training,
            micro_batch=number,
            rows=self.sizes[number] if has_tensor else 0,
            batch_rows=self._rows,
            wants_gradient=wants_gradient,
            loss=self._losses[number],
        )

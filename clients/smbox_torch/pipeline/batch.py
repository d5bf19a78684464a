"""Forwards and backwards of one batch at one stage of a pipeline."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from smbox.errors import ConfigError, LayoutMismatchError
from smbox_torch.pipeline.agreement import device_of
from smbox_torch.pipeline.building import BuiltStage
from smbox_torch.pipeline.ring import Header, TensorSpec
from smbox_torch.pipeline.schedule import Task

__all__ = ["Batch", "Loss", "sizes_of"]

Loss = Callable[[torch.Tensor, torch.Tensor], Any]
"""Function of outputs and targets of a micro-batch; returns the mean over rows, one element."""


def sizes_of(rows: int, micro_batches: int) -> list[int]:
    """Return the number of rows of each micro-batch, as ``torch.tensor_split`` cuts a batch.

    Sizes differ by at most one, the larger first. No micro-batch is empty.
    """
    count = min(rows, micro_batches)
    return [rows // count + (number < rows % count) for number in range(count)]


class _ReceivedInput(torch.autograd.Function):
    """Makes received activations a non-leaf tensor, so a stage may change them in place.

    Backward appends the gradient to a list.
    """

    @staticmethod
    def forward(
        ctx: Any,
        anchor: torch.Tensor,  # noqa: ARG004 - requires a gradient, so that torch makes a graph
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
        stage: module and links of the stage.
        number: number of the batch, from 0.
        rows: number of rows of the batch.
        micro_batches: largest number of micro-batches.
        inputs: the batch, at the first stage; None at other stages.

    Attributes:
        sizes: number of rows of each micro-batch.
        held_max: largest number of micro-batches held for their backward at one time.
    """

    def __init__(
        self,
        stage: BuiltStage,
        number: int,
        rows: int,
        micro_batches: int,
        inputs: torch.Tensor | None,
    ) -> None:
        self.sizes = sizes_of(rows, micro_batches)
        self.held_max = 0
        self._stage = stage
        self._number = number
        self._rows = rows
        self._inputs = None if inputs is None else torch.split(inputs, self.sizes)
        self._targets: Sequence[torch.Tensor] = ()
        self._loss: Loss | None = None
        self._is_training = False
        self._losses = [0.0] * len(self.sizes)
        self._held: dict[int, torch.Tensor] = {}
        self._gradients: dict[int, list[torch.Tensor]] = {}
        self._device = device_of(stage.module)

    @property
    def loss(self) -> float:
        """The loss of the batch: the weighted losses of the micro-batches, added in order."""
        return sum(self._losses)

    def outputs(self) -> torch.Tensor | None:
        """Compute all forwards without gradients; return the outputs at the last stage."""
        each = [self._forward(number) for number in range(len(self.sizes))]
        return torch.cat(each) if self._stage.downstream is None else None

    def train(
        self, tasks: Sequence[Task], targets: torch.Tensor | None, loss: Loss | None
    ) -> None:
        """Compute forwards and backwards; add the gradients to ``parameter.grad``.

        Args:
            tasks: the computations, in order.
            targets: one for each row, at the last stage; else None.
            loss: the loss function, at the last stage.
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
        """Return the output of a micro-batch, or its loss at the last stage in training."""
        downstream = self._stage.downstream
        y = self._check_output(self._stage.module(self._input(number)), self.sizes[number])
        if downstream is not None:
            downstream.writer.send(self._header(number, needs_gradient=y.requires_grad), y)
        elif self._is_training:
            y = self._weighted_loss(number, y)
        return y

    def _check_output(self, y: object, rows: int) -> torch.Tensor:
        """Return a module's output; raise LayoutMismatchError if it is not as agreed."""
        downstream = self._stage.downstream
        found = type(y).__name__
        if isinstance(y, torch.Tensor):
            is_agreed = downstream is None or downstream.writer.spec.matches(y)
            if y.dim() and len(y) == rows and is_agreed:
                return y
            found = str(TensorSpec.of(y))
        raise LayoutMismatchError(
            "this stage's output has another shape or dtype than the stages agreed on: build"
            " the pipeline under the same autocast and in the same mode, and let the shape of"
            " the output depend only on that of the input",
            agreed="a tensor" if downstream is None else str(downstream.writer.spec),
            rows=rows,
            found=found,
        )

    def _input(self, number: int) -> torch.Tensor:
        """Return the input of a micro-batch at this stage."""
        upstream = self._stage.upstream
        if upstream is None:
            assert self._inputs is not None
            return self._inputs[number]
        header, x = upstream.reader.receive(self._device)
        if not header.needs_gradient:
            return x
        gradients = self._gradients[number] = []
        anchor = torch.zeros((), requires_grad=True, device="cpu")
        found: torch.Tensor = _ReceivedInput.apply(anchor, x, gradients)  # type: ignore[no-untyped-call]
        return found

    def _weighted_loss(self, number: int, y: torch.Tensor) -> torch.Tensor:
        """Return a micro-batch's loss, weighted by its share of the batch's rows."""
        assert self._loss is not None
        loss = self._loss(y, self._targets[number])
        if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
            raise ConfigError("loss= must return the mean over rows, a tensor of one element")
        if not loss.requires_grad:
            raise ConfigError(
                "the result of loss= requires no gradient: compute it without torch.no_grad(),"
                " detach() and item(), and leave a parameter unfrozen; to compute outputs only,"
                " call forward()"
            )
        share: torch.Tensor = loss * (self.sizes[number] / self._rows)
        self._losses[number] = float(share.detach())
        return share

    def _backward(self, number: int, y: torch.Tensor) -> None:
        """Compute gradients, and send the input's gradient upstream if it is needed there.

        As in one process, a parameter that the loss does not depend on gets no gradient.
        """
        upstream, downstream = self._stage.upstream, self._stage.downstream
        if downstream is None:
            torch.autograd.backward(y)
        else:
            header, gradient = downstream.reader.receive(self._device)
            self._losses[number] = header.loss
            if header.rows:
                torch.autograd.backward(y, gradient)
        if upstream is not None:
            found = self._gradients.pop(number, [])
            gradient_in = found[0] if found else None
            upstream.writer.send(self._header(number, has_tensor=bool(found)), gradient_in)

    def _header(
        self, number: int, *, needs_gradient: bool = False, has_tensor: bool = True
    ) -> Header:
        return Header(
            batch=self._number,
            is_training=self._is_training,
            micro_batch=number,
            rows=self.sizes[number] if has_tensor else 0,
            batch_rows=self._rows,
            needs_gradient=needs_gradient,
            loss=self._losses[number],
        )

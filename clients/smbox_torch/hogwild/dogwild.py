"""Dogwild: the master streams weights, the workers stream gradients, without waiting.

Noel, Osindero: Dogwild! Distributed Hogwild for CPU and GPU, NIPS workshop 2014; Caffe's pull
request 1148. Solver and streamer are two unsynchronized threads on the same buffers. The
streamer repeatedly transfers all chunks. c the weights and s the sum of gradients in the
memory, x the weights of master or worker, p the gradients that wait there, g the gradient,
computed while the streamer changed x:

    master   solver:    x = f(x, g + p);  p = 0                 (the inner optimizer)
             streamer:  p = p + s;  s = 0  (one atomic op);     c = x
    worker   solver:    p = p + g
             streamer:  s = s + p;  p = 0;                      x = c

The chunks of a worker's x belong to different versions of the master's weights.

With ``model=`` the streamers also transfer batch-norm statistics. They are averaged, because
they are not sums of gradients, and a master may have no data. r the statistics of master or
worker, q those in the memory, n and m their counts of batches:

    streamer, if a forward pass changed r:  d = moving_rate (r - q);  q = q + d;  r = r - d
    streamer, otherwise:                    r = q
    both:                                   m = n = max(m, n)           (each one atomic op)

Variant: the paper streams over raw sockets and tolerates lost chunks. The memory's operations
are exact, so every gradient arrives once. Chunks are stripes. The master may be on any host.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final, TypeVar, Unpack

import numpy as np
import torch

from smbox.errors import ConfigError
from smbox.memory.layout import STRIPE_NBYTES
from smbox.mutex import Mutex
from smbox_torch.adapter import as_array
from smbox_torch.boxes import Array, BoxLike, RegionLike
from smbox_torch.checks import check_optimizer, flag, real
from smbox_torch.hogwild.statistics_stream import StatisticsStream
from smbox_torch.hogwild.stream import Stream
from smbox_torch.model.sparse_gradients import check_dense
from smbox_torch.model.tensor_versions import TensorVersions
from smbox_torch.optimizer.center import Center, Shared
from smbox_torch.optimizer.moving_rate import FUSED_MOVING_RATE
from smbox_torch.optimizer.options import BoxOptions
from smbox_torch.optimizer.wrapper import BoxOptimizer

__all__ = ["Dogwild"]

PAUSE_S: Final = 1e-3

T = TypeVar("T")


class Dogwild(BoxOptimizer):
    """An optimizer whose master steps with the gradients that all workers stream to it.

    The master steps with the sum of the workers' gradients: divide the learning rate by the
    number of workers, or by more if training diverges. Only the master's optimizer steps. A
    master without data only calls ``step``.

    Args:
        optimizer: the inner optimizer; the master's does the steps, a worker's only lists the
            parameters.
        box: the memory box.
        name: name of the run.
        is_master: whether this worker is the master; None: rank 0 is.
        pause_s: pause of the streamer between two passes, in seconds; None: there is no
            streamer thread, and the caller calls ``stream``.
        options: model, workers and others: see BoxOptimizer. Statistics and batch counts are
            streamed.

    Raises:
        ConfigError: pause_s is invalid, ``wire`` is given, or the optimizer is SparseAdam:
            sums of gradients are dense. Nothing was created.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        box: BoxLike,
        name: str,
        *,
        is_master: bool | None = None,
        pause_s: float | None = PAUSE_S,
        **options: Unpack[BoxOptions],
    ) -> None:
        if pause_s is not None and not 0.0 <= real("pause_s", pause_s) < math.inf:
            raise ConfigError("pause_s must be at least 0 seconds", pause_s=pause_s)
        if is_master is not None:
            is_master = flag("is_master", is_master)
        if options.get("wire") is not None:
            raise ConfigError("streams have the center's dtype: leave out wire=")
        check_optimizer(optimizer)
        check_dense(optimizer)
        super().__init__(optimizer, box, name, **options)
        self.is_master = self.rank == 0 if is_master is None else is_master
        self._sums = Center(box, f"{name}.gradients", self.flat, init=0.0, loads=False)
        self._pending = [torch.zeros_like(b.wide, device="cpu") for b in self.flat.buffers]
        self._handing_over = Mutex()
        self._turning = Mutex()  # held while gradients are between memory and p
        self._versions = TensorVersions(self.flat.tensors)
        self._statistics = StatisticsStream(self.buffers, self.counts)
        self._stream = None if pause_s is None else Stream(self.stream, pause_s)

    def _remember(self) -> None:
        """Record no checksum: the streamer changes x before the first step, too."""

    def _demand_unchanged(self) -> None:
        """Raise ConfigError if somebody but the streamer changed a worker's weights."""
        self.flat.check()
        if not self.is_master and self._versions.have_changed():
            raise ConfigError(
                "a worker's model was changed, and the stream overwrites it: change the"
                " master's model, or load the model before the optimizer is wrapped. To go on,"
                " call center_into(model), which copies the master's weights",
                rank=self.rank,
            )

    def center_into(self, model: torch.nn.Module) -> None:
        """Copy the weights into a model; it may be the worker's own."""
        super().center_into(model)
        self._versions.record()

    def _prepare_gradients(self) -> None:
        """Return: the master's gradient is a dense sum, and a worker does not step."""

    # ------------------------------------------------------------------ the solver

    def _advance(self) -> None:
        self._begin_exchange()
        self._demand_streamer()
        own = [(parameter, parameter.grad) for parameter in self.flat.tensors]
        try:
            self._handing_over.holding(None, self._hand_over_all)
            if self.is_master:
                self.inner.step()
        finally:
            for parameter, gradient in own:  # a master without data has nothing to clear
                parameter.grad = gradient
        self._count_step()
        for buffer in self.flat.buffers:
            if self.is_master:
                buffer.load()
            else:
                buffer.store()
        self._statistics.hand_over()

    def _demand_streamer(self) -> None:
        """Raise the error that ended the streamer, or ConfigError if it was raised before."""
        if self._stream is None:
            return
        has_ended = self._stream.has_ended  # first: it may end meanwhile
        self._stream.check()
        if has_ended:
            raise ConfigError(
                "the streamer has ended with the error that an earlier step raised: close this"
                " optimizer, and wrap the inner one again",
                rank=self.rank,
            )

    def _hand_over_all(self) -> None:
        for pending, buffer in zip(self._pending, self.flat.buffers, strict=True):
            for parameter, part in zip(buffer.tensors, buffer.split(pending), strict=True):
                self._hand_over(parameter, part)

    def _hand_over(self, parameter: torch.Tensor, part: torch.Tensor) -> None:
        """Master: step with its own and the streamed gradient. Worker: queue the gradient."""
        own = parameter.grad
        if not self.is_master:
            if own is not None:
                part.add_(own.to(part.device))
            return
        if parameter.requires_grad and (own is not None or part.any()):  # else it would decay
            dense = part.to(parameter.device, copy=True)
            dense = dense if own is None else dense.add_(own)
            parameter.grad = dense.to(parameter.dtype)
        part.zero_()

    def eval(self) -> None:
        """Return without a change: the model is the master's, or follows it.

        The streamer continues to read and write the model.
        """

    # ------------------------------------------------------------------ the streamer

    def stream(self) -> None:
        """Transfer all weights and gradients once; the streamer repeats this call.

        Raises:
            LeaseLostError: another process has this worker's rank; nothing was exchanged.
        """
        self._turning.holding(None, self._turn)

    def _turn(self) -> None:
        self.team.check()
        began_s, steps = time.monotonic(), self.steps
        move = self._serve if self.is_master else self._work
        for (buffer, weights), (_, sums), pending in zip(
            self.center, self._sums, self._pending, strict=True
        ):
            waiting = as_array(pending)
            chunk = STRIPE_NBYTES // waiting.itemsize
            for first in range(0, buffer.size, chunk):
                piece = slice(first, min(first + chunk, buffer.size))
                move(weights[piece], buffer.host[piece], sums[piece], waiting[piece])
        moved = 3 if self.is_master else 2  # a master also sends zeros, which replace gradients
        nbytes = moved * self.center.nbytes + self._statistics.stream(FUSED_MOVING_RATE)
        if steps != self._shared_steps:
            self._note_shared(steps)
        took_s = time.monotonic() - began_s
        self.recorder.exchange(took_s=took_s, nbytes=nbytes)

    def _serve(self, weights: RegionLike, x: Array, sums: RegionLike, waiting: Array) -> None:
        """Master: fetch a chunk of gradients, set it to zero, and put a chunk of weights."""
        came = sums.fetch_and_op(waiting * 0, op="replace")
        self._handing_over.holding(None, lambda: np.add(waiting, came, out=waiting))
        weights.put(x)

    def _work(self, weights: RegionLike, x: Array, sums: RegionLike, waiting: Array) -> None:
        """Worker: add a chunk of gradients and fetch a chunk of weights."""

        def take() -> Array:
            sent = waiting.copy()
            waiting[...] = 0
            return sent

        sums.accumulate(self._handing_over.holding(None, take))
        weights.get(out=x)

    # ------------------------------------------------------------------ resuming and ending

    def _shared(self) -> Iterator[Shared]:
        yield from super()._shared()
        yield self._sums

    def state_dict(self) -> dict[str, Any]:
        """Return the state, as BoxOptimizer does, between two turns of the streamer."""
        return self._between_turns(super().state_dict)

    def load_state_dict(self, state_dict: dict[str, Any], *, force: bool = False) -> None:
        """Resume from a state, as BoxOptimizer does, between two turns of the streamer."""
        self._between_turns(partial(super().load_state_dict, state_dict, force=force))

    def _between_turns(self, job: Callable[[], T]) -> T:
        """Call a job between two turns; ConfigError inside another call of this thread."""
        self._handing_over.check_not_nested()  # a turn would wait for that call
        return self._turning.holding(None, job)

    def _demand_outside_calls(self) -> None:
        """Raise ConfigError inside a call of this thread: the last pass would wait for it."""
        self._handing_over.check_not_nested()
        self._turning.check_not_nested()

    def _extra_state(self) -> dict[str, Any]:
        def copies() -> list[torch.Tensor]:
            return [pending.clone() for pending in self._pending]

        return {"pending": self._handing_over.holding(None, copies)}

    def _load_extra_state(self, extra: dict[str, Any]) -> None:
        self._set_pending(extra["pending"])

    def _forget_unshared(self) -> None:
        self._set_pending([torch.zeros_like(pending) for pending in self._pending])

    def _set_pending(self, values: list[torch.Tensor]) -> None:
        def copy() -> None:
            for pending, value in zip(self._pending, values, strict=True):
                pending.copy_(value)

        self._handing_over.holding(None, copy)

    def finish(self, *, timeout_s: float | None = None) -> None:
        """End the run, as BoxOptimizer does; ConfigError inside a call of this thread."""
        self._demand_outside_calls()
        super().finish(timeout_s=timeout_s)

    def close(self, *, exchange: bool = True) -> None:
        """Leave the run, as BoxOptimizer does; ConfigError inside a call of this thread."""
        self._demand_outside_calls()
        super().close(exchange=exchange)

    def _end(self) -> None:
        """Stop the streamer after a last pass, which sends all gradients of this worker.

        Gradients that reach a master after its last step stay in the memory.

        Raises:
            SmboxError: the streamer failed, and no step has raised its error.
        """
        if self._stream is not None:
            self._stream.close()

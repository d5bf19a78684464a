"""Exchanges that run while the next gradient is computed.

At the end of a step an update thread sends x. The move that the memory returns is subtracted
when the next step begins; until then x must not change. Several ranks may hold the same x: one
of them, the root, exchanges, and a ``Broadcast`` delivers the move to all of them.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Protocol

import torch

from smbox_torch.boxes import Array
from smbox_torch.elastic.update_thread import UpdateThread
from smbox_torch.model.device import await_device, host_like
from smbox_torch.model.flat import FlatBuffer
from smbox_torch.optimizer.stats import Recorder

__all__ = ["Broadcast", "Exchange", "NoBroadcast", "Overlap", "ThreadedExchange", "Worker"]


class Broadcast(Protocol):
    """Delivers the moves of successive exchanges from the root to one rank."""

    @property
    def tensors(self) -> Sequence[torch.Tensor]:
        """One move per flat buffer, of the center's dtype, on the CPU.

        They belong to the next exchange, or to the one in flight.
        """

    def wait_writable(self) -> None:
        """Root: wait until ``tensors`` may be written."""

    def publish(self) -> None:
        """Root, on any thread: announce that ``tensors`` are written."""

    def receive(self) -> None:
        """Wait until ``tensors`` may be read; all ranks call it."""

    def release(self) -> None:
        """Release ``tensors`` and continue with the next exchange."""


class NoBroadcast:
    """The moves of a rank that is alone with its x.

    Args:
        flat: the buffers that are moved.
    """

    def __init__(self, flat: Sequence[FlatBuffer]) -> None:
        self.tensors: Sequence[torch.Tensor] = [host_like(buffer.wide) for buffer in flat]

    def wait_writable(self) -> None:
        """Return: no other rank reads ``tensors``."""

    def publish(self) -> None:
        """Return: no other rank waits for ``tensors``."""

    def receive(self) -> None:
        """Return: ``tensors`` are local."""

    def release(self) -> None:
        """Return: the next moves use the same tensors."""


class Worker(Protocol):
    """A worker that exchanges x with the center.

    Attributes:
        recorder: counts exchanges.
    """

    recorder: Recorder

    @property
    def exchange_nbytes(self) -> int:
        """Bytes of an exchange, both directions."""

    def prepare(self) -> Sequence[Array]:
        """Return x to send, one ``[P]`` per buffer, in memory that does not change meanwhile.

        It raises an error if x cannot be exchanged.
        """

    def request_moves(self, xs: Sequence[Array], moves: Sequence[torch.Tensor]) -> None:
        """Exchange x with the center without changing x; store its moves in ``moves``."""


class Exchange(Protocol):
    """Successive exchanges, on the rank that does them."""

    @property
    def busy(self) -> bool:
        """Whether an exchange was begun and not finished yet."""

    def begin(self, broadcast: Broadcast) -> None:
        """Begin an exchange of the current x; its moves are published by ``broadcast``."""

    def finish(self) -> None:
        """Wait for the exchange and raise its exception, if any; no effect when idle."""

    def close(self) -> None:
        """Release the resources of the exchange."""


class ThreadedExchange:
    """Exchanges on an update thread.

    Args:
        worker: the worker whose x is exchanged.
    """

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._thread = UpdateThread()

    @property
    def busy(self) -> bool:
        """Whether an exchange was begun and not finished yet."""
        return self._thread.busy

    def begin(self, broadcast: Broadcast) -> None:
        """Begin an exchange of the current x."""
        xs = self._worker.prepare()
        self._thread.begin(partial(self._run, xs, broadcast, broadcast.tensors))

    def _run(
        self, xs: Sequence[Array], broadcast: Broadcast, tensors: Sequence[torch.Tensor]
    ) -> None:
        self._worker.request_moves(xs, tensors)
        broadcast.publish()

    def finish(self) -> None:
        """Wait for the exchange in flight and count it."""
        if self.busy:
            self._thread.finish()
            self._worker.recorder.exchange(
                took_s=self._thread.took_s, nbytes=self._worker.exchange_nbytes
            )

    def close(self) -> None:
        """Stop the thread."""
        self._thread.close()


class Overlap:
    """The pending moves of one rank's x.

    Args:
        flat: x, the buffers that are moved.
        broadcast: delivers the moves to this rank.
        recorder: counts the time that this rank waited.
        exchange: does the exchanges; None on a rank that only receives moves.
    """

    def __init__(
        self,
        flat: Sequence[FlatBuffer],
        broadcast: Broadcast,
        recorder: Recorder,
        exchange: Exchange | None,
    ) -> None:
        self._flat = flat
        self._broadcast = broadcast
        self._recorder = recorder
        self._exchange = exchange
        self._pending: Sequence[torch.Tensor] | None = None
        self._is_exchange = False  # pending is from an exchange, not from load_state

    def begin(self) -> None:
        """Settle, and begin the next exchange with the resulting x."""
        self.settle()
        if self._exchange is not None:
            self._broadcast.wait_writable()
            self._exchange.begin(self._broadcast)
        self._note()

    def _note(self) -> None:
        """Note the move of an exchange that was begun."""
        self._pending = self._broadcast.tensors
        self._is_exchange = True

    def _note_begun(self) -> None:
        """Note the exchange in flight: an interrupt may have stopped ``begin`` before it."""
        if self._exchange is not None and self._exchange.busy:
            self._note()

    @torch.no_grad()
    def settle(self) -> None:
        """Wait for the exchange in flight and subtract its move from x.

        After an exception x is unchanged, and nothing is pending. An interrupt while x changes
        may leave out a part of the move.
        """
        if not self.is_pending:
            return
        await_device(self._flat[0].flat)  # the gradient's time is no wait for the move
        self._arrive()
        began_s = time.monotonic()
        moves, self._pending = self._pending, []  # first: an interrupt must not repeat them
        if moves:
            for buffer, move in zip(self._flat, moves, strict=True):
                buffer.master.subtract(move)
        self._forget()
        self._recorder.waited(time.monotonic() - began_s)

    def _arrive(self) -> None:
        self.finish()
        began_s = time.monotonic()
        with self._forgetting():
            self._broadcast.receive()
        took_s = time.monotonic() - began_s
        self._recorder.waited(took_s)
        self._count(took_s)

    def _count(self, took_s: float) -> None:
        """Count the exchange in flight on a rank that only receives its move.

        Only the root knows how long the exchange took: count the time waited.
        """
        if self._exchange is None and self._pending is not None and self._is_exchange:
            self._recorder.exchange(took_s=took_s, nbytes=0)

    def finish(self) -> None:
        """Wait for the exchange in flight, if this rank does it; x is not changed."""
        if self._exchange is not None:
            self._note_begun()
            began_s = time.monotonic()
            with self._forgetting():
                self._exchange.finish()
            self._recorder.waited(time.monotonic() - began_s)

    @contextmanager
    def _forgetting(self) -> Iterator[None]:
        """Discard the pending moves if the block fails: their contents are undefined."""
        try:
            yield
        except Exception:
            self._forget()
            raise

    def _forget(self) -> None:
        if self._pending is not None:
            self._pending = None
            self._broadcast.release()

    @property
    def is_pending(self) -> bool:
        """Whether a move of x is pending."""
        self._note_begun()
        return self._pending is not None

    def state(self) -> list[torch.Tensor] | None:
        """Return the moves that are not subtracted yet, or None.

        A rank that only receives moves returns an empty list if some are pending: it does not
        know them yet.
        """
        self.finish()
        if self._pending is None:
            return None
        return [] if self._exchange is None else [move.clone() for move in self._pending]

    def load_state(self, moves: Sequence[torch.Tensor] | None) -> None:
        """Replace the pending moves by those of a state.

        All ranks call it. The root broadcasts its moves again; unknown moves (an empty list)
        are broadcast as zeros.
        """
        self.finish()
        self._count(0.0)  # as the root did in finish; its move is discarded
        self._forget()
        if moves is None:
            return
        if self._exchange is not None:
            self._broadcast.wait_writable()
            for number, place in enumerate(self._broadcast.tensors):
                place.copy_(moves[number] if moves else torch.zeros_like(place))
            self._broadcast.publish()
        self._pending = self._broadcast.tensors
        self._is_exchange = False

    def close(self) -> None:
        """Close the exchange; call :meth:`settle` before it if x is still used."""
        if self._exchange is not None:
            self._exchange.close()

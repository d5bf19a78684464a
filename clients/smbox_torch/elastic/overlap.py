"""Exchanges that hide behind a gradient, which leaves x as it is.

The x of the end of a step goes out on an update thread while the next gradient is taken; the
move that comes back is subtracted when that gradient's step begins. Nobody may change x in
between. Several ranks may hold the same x: one of them exchanges, and ``Moves`` brings what it
was told to all.
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
from smbox_torch.model.flat import FlatBuffer, FlatParameters
from smbox_torch.optimizer.stats import Recorder

__all__ = ["Exchange", "Moves", "NoBroadcast", "Overlap", "ThreadedExchange", "Worker"]


class Moves(Protocol):
    """How the moves of one exchange after the other reach one rank."""

    @property
    def tensors(self) -> Sequence[torch.Tensor]:
        """One move per flat buffer, of the center's dtype, on the CPU.

        It is of the exchange that is next or under way.
        """

    def wait_writable(self) -> None:
        """Root: return when ``tensors`` may be written."""

    def publish(self) -> None:
        """Root, on whatever thread: ``tensors`` are written."""

    def receive(self) -> None:
        """Return when ``tensors`` may be read; all ranks call it."""

    def release(self) -> None:
        """Let go of ``tensors`` and turn to the next exchange."""


class NoBroadcast:
    """The moves of a rank that has x for itself.

    Args:
        flat: what is moved.
    """

    def __init__(self, flat: Sequence[FlatBuffer]) -> None:
        self.tensors: Sequence[torch.Tensor] = [
            torch.empty_like(buffer.wide, device="cpu") for buffer in flat
        ]

    def wait_writable(self) -> None:
        """Return: nobody else reads them."""

    def publish(self) -> None:
        """Return: nobody else waits for them."""

    def receive(self) -> None:
        """Return: they are here."""

    def release(self) -> None:
        """Return: the next ones go to the same place."""


class Worker(Protocol):
    """Who exchanges x with the center.

    Attributes:
        recorder: counts exchanges.
        flat: x.
    """

    recorder: Recorder
    flat: FlatParameters

    @property
    def exchange_nbytes(self) -> int:
        """Bytes of an exchange, both directions."""

    def prepare(self) -> Sequence[Array]:
        """Return x as it goes out, ``[P]`` each, in memory that nobody changes meanwhile.

        Raises what keeps x from being exchanged.
        """

    def request_moves(self, xs: Sequence[Array], moves: Sequence[torch.Tensor]) -> None:
        """Exchange x with the center and leave it alone; its moves come back in ``moves``."""


class Exchange(Protocol):
    """One exchange after the other, on the rank that does them."""

    def begin(self, moves: Moves) -> None:
        """Begin to exchange x as it is now; ``moves`` is told."""

    def finish(self) -> None:
        """Return when it is done; raise what went wrong. Harmless when none is under way."""

    def close(self) -> None:
        """End."""


class ThreadedExchange:
    """Exchanges on an update thread: x goes out, its moves come back.

    Args:
        worker: whose they are.
    """

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._thread = UpdateThread()

    def begin(self, moves: Moves) -> None:
        """Send x on its way."""
        xs = self._worker.prepare()
        self._thread.begin(partial(self._run, xs, moves, moves.tensors))

    def _run(self, xs: Sequence[Array], moves: Moves, tensors: Sequence[torch.Tensor]) -> None:
        self._worker.request_moves(xs, tensors)
        moves.publish()

    def finish(self) -> None:
        """Wait for the exchange under way and count it."""
        if self._thread.busy:
            self._thread.finish()
            self._worker.recorder.exchange(
                took_s=self._thread.took_s, nbytes=self._worker.exchange_nbytes
            )

    def close(self) -> None:
        """End the thread."""
        self._thread.close()


class Overlap:
    """The moves that one rank's x has still to make.

    Args:
        flat: x.
        moves: how they reach this rank.
        recorder: is told how long this rank waited.
        exchange: does the exchanges; None on a rank that only hears of them.
    """

    def __init__(
        self,
        flat: Sequence[FlatBuffer],
        moves: Moves,
        recorder: Recorder,
        exchange: Exchange | None,
    ) -> None:
        self._flat = flat
        self._moves = moves
        self._recorder = recorder
        self._exchange = exchange
        self._pending: Sequence[torch.Tensor] | None = None
        self._is_under_way = False

    def begin(self) -> None:
        """Settle, and begin the next exchange with x as it is then."""
        self.settle()
        if self._exchange is not None:
            self._moves.wait_writable()
            self._exchange.begin(self._moves)
        self._pending, self._is_under_way = self._moves.tensors, True

    @torch.no_grad()
    def settle(self) -> None:
        """Wait for the exchange under way and move x by what it was told.

        Whatever it raises, x is as it was, and nothing is pending any more.
        """
        if self._pending is None:
            return
        if self._is_under_way:
            self._arrive()
        began_s = time.monotonic()
        for buffer, move in zip(self._flat, self._pending, strict=True):
            buffer.master.subtract(move)
        self._forget()
        self._recorder.waited(time.monotonic() - began_s)

    def _arrive(self) -> None:
        self.finish()
        began_s = time.monotonic()
        with self._forgetting():
            self._moves.receive()
        took_s = time.monotonic() - began_s
        self._recorder.waited(took_s)
        if self._exchange is None:
            # How long it took only its rank can know; here it is what was waited for.
            self._recorder.exchange(took_s=took_s, nbytes=0)

    def finish(self) -> None:
        """Wait for the exchange under way, if this rank does it; x stays as it is."""
        if self._exchange is not None:
            began_s = time.monotonic()
            with self._forgetting():
                self._exchange.finish()
            self._recorder.waited(time.monotonic() - began_s)

    @contextmanager
    def _forgetting(self) -> Iterator[None]:
        """Forget the moves if they do not come: what lies in their place is something else."""
        try:
            yield
        except Exception:
            self._forget()
            raise

    def _forget(self) -> None:
        self._pending = None
        if self._is_under_way:
            self._is_under_way = False
            self._moves.release()

    @property
    def is_pending(self) -> bool:
        """Whether x has still to move."""
        return self._pending is not None

    def state(self) -> list[torch.Tensor] | None:
        """Return the moves that are not subtracted yet, or None.

        A rank that only hears of them returns an empty list: they are there, and it does not
        know them yet.
        """
        self.finish()
        if self._pending is None:
            return None
        return [] if self._exchange is None else [move.clone() for move in self._pending]

    def load_state(self, moves: Sequence[torch.Tensor] | None) -> None:
        """Take moves that are still to be subtracted instead of those of before.

        All ranks do it at once. The rank that exchanges tells its moves again to those that
        only hear of them; unknown ones (an empty list) are told as zeros.
        """
        self.finish()
        self._forget()
        if moves is None:
            return
        if self._exchange is not None:
            self._moves.wait_writable()
            for number, place in enumerate(self._moves.tensors):
                place.copy_(moves[number] if moves else torch.zeros_like(place))
            self._moves.publish()
        self._pending, self._is_under_way = self._moves.tensors, True

    def close(self) -> None:
        """End, after :meth:`settle` where x is to be kept."""
        if self._exchange is not None:
            self._exchange.close()

"""A ring of workers over ZeroMQ: each one sends to the next and hears from the one before.

No memory node takes part. The sum of an array is made as in bandwidth-optimal all-reduce
(Patarasuk, Yuan 2009): the array is cut into as many parts as there are workers; in W - 1
rounds each part travels once around and gathers everybody's share, in W - 1 more the finished
parts travel around. Each worker sends ``2 (W - 1) / W`` of the array, whatever W is.

Part p begins at rank p, so its sum is ``((x_p + x_p+1) + ...) + x_p-1``, indices modulo W,
made by one worker at a time: all workers end with the same bits.

A message is a header (kind, number) and a body. While a worker waits it tells the next one
that it is alive; so whoever hears nothing knows that it is its neighbour who is stuck, and
tells all others by a message that runs around.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
import zmq
from numpy.typing import NDArray
from zmq.utils.monitor import parse_monitor_message

from smbox.errors import ConfigError, RemoteProtocolError, WorkerLostError

__all__ = ["Exchange", "Ring"]

Exchange = Callable[[str], Sequence[str]]
"""Takes this worker's address; returns those of all workers, by rank."""

HEADER: Final = struct.Struct("<BxxxxxxxQ")
DATA: Final = 1  # number: of the message on this edge, from 1
ALIVE: Final = 2
LOST: Final = 3  # number: the rank that is lost
TELL_S: Final = 0.25
LINGER_MS: Final = 2000


class Ring:
    """One worker's place in the ring.

    Args:
        rank: of this worker.
        size: number of workers, W.
        exchange: how the workers learn each other's addresses.
        host: address of this host that the previous worker can reach; nothing that arrives
            there is authenticated, so it belongs on a trusted network.
        timeout_s: until a neighbour that says nothing is given up, in seconds.
    """

    def __init__(
        self,
        rank: int,
        size: int,
        exchange: Exchange,
        *,
        host: str = "127.0.0.1",
        timeout_s: float = 300.0,
    ) -> None:
        if not 0 <= rank < size:
            raise ConfigError("a rank is below the number of workers", rank=rank, size=size)
        self.rank, self.size, self.timeout_s = rank, size, timeout_s
        self._sent = self._received = 0
        self._context = zmq.Context()
        self._before = self._socket(zmq.PULL)
        self._next = self._socket(zmq.PUSH)
        self._departures = self._before.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        try:
            port = self._before.bind_to_random_port(f"tcp://{host}")
            addresses = exchange(f"tcp://{host}:{port}")
            self._next.connect(addresses[(rank + 1) % size])
        except BaseException:
            self.close()
            raise

    def _socket(self, kind: int) -> zmq.Socket[bytes]:
        """Make a socket without a bound: the rounds themselves bound what is under way."""
        socket = self._context.socket(kind)
        socket.setsockopt(zmq.LINGER, LINGER_MS)
        socket.set_hwm(0)
        return socket

    def sum(self, array: NDArray[Any]) -> None:
        """Replace an array by its sum over all workers, in place.

        Args:
            array: ``[n]``, C-contiguous, of the same size and dtype on every worker.

        Raises:
            WorkerLostError: a worker died, left or said nothing; the array is undefined.
        """
        if self.size == 1:
            return
        parts = np.array_split(array, self.size)
        for turn in range(self.size - 1):
            # Not copied: it changes again only when its sum has come back around.
            self._send(parts[(self.rank - turn) % self.size], copy=False)
            part = parts[(self.rank - turn - 1) % self.size]
            np.add(self._receive(part), part, out=part)
        for turn in range(self.size - 1):
            self._send(parts[(self.rank - turn + 1) % self.size])
            part = parts[(self.rank - turn) % self.size]
            part[...] = self._receive(part)

    def broadcast(self, array: NDArray[Any], source: int = 0) -> None:
        """Replace an array by that of rank ``source``, in place.

        Raises:
            WorkerLostError: as ``sum``.
        """
        if self.rank != source:
            array[...] = self._receive(array)
        if (self.rank + 1) % self.size != source:
            self._send(array)

    def _send(self, part: NDArray[Any], *, copy: bool = True) -> None:
        self._sent += 1
        self._next.send(HEADER.pack(DATA, self._sent), zmq.SNDMORE)
        self._next.send(part.view(np.uint8).data, 0, copy=copy)

    def _receive(self, like: NDArray[Any]) -> NDArray[Any]:
        """Return the next array, which must be of the size and dtype of ``like``."""
        self._received += 1
        silent_s = time.monotonic()
        while True:
            frames = self._wait()
            now_s = time.monotonic()
            if frames is None:
                if now_s - silent_s > self.timeout_s:
                    self._give_up(self._rank_before, "says nothing")
                self._next.send_multipart([HEADER.pack(ALIVE, 0), b""])
                continue
            silent_s = now_s
            kind, number = self._header(frames)
            if kind == LOST:
                self._give_up(number, "was given up by another worker")
            if kind == DATA:
                return self._body(number, frames[1].buffer, like)

    def _header(self, frames: list[zmq.Frame]) -> tuple[int, int]:
        if len(frames) != 2 or len(frames[0]) != HEADER.size:
            raise RemoteProtocolError("this is no message of a ring", frames=len(frames))
        kind, number = HEADER.unpack(frames[0].bytes)
        return kind, number

    def _body(self, number: int, body: memoryview, like: NDArray[Any]) -> NDArray[Any]:
        if number != self._received or body.nbytes != like.nbytes:
            raise RemoteProtocolError(
                "the workers of the ring do not do the same: give all the same model",
                rank=self._rank_before,
                number=number,
                nbytes=body.nbytes,
            )
        return np.frombuffer(body, dtype=np.uint8).view(like.dtype)

    def _wait(self) -> list[zmq.Frame] | None:
        """Return the next message, or None after TELL_S."""
        poller = zmq.Poller()
        poller.register(self._before, zmq.POLLIN)
        poller.register(self._departures, zmq.POLLIN)
        ready = dict(poller.poll(int(1000 * TELL_S)))
        if self._before in ready or self._before.poll(0):
            return self._before.recv_multipart(copy=False)
        if self._departures in ready:
            parse_monitor_message(self._departures.recv_multipart())
            self._give_up(
                self._rank_before, "died or left before the others, or had fewer batches"
            )
        return None

    @property
    def _rank_before(self) -> int:
        return (self.rank - 1) % self.size

    def _give_up(self, rank: int, verdict: str) -> None:
        """Tell the others which rank is lost, and raise."""
        if rank not in {self.rank, (self.rank + 1) % self.size}:
            self._next.send_multipart([HEADER.pack(LOST, rank), b""])
        raise WorkerLostError(
            f"rank {rank} {verdict}; the ring cannot go on without it (unequal numbers of"
            " batches: put each rank's loop inside `with optimizer.join():`)",
            rank=rank,
            timeout_s=self.timeout_s,
        )

    def close(self) -> None:
        """Leave; what was sent is delivered, for LINGER_MS at most."""
        if self._context.closed:
            return
        self._before.disable_monitor()
        self._context.destroy()

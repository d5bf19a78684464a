"""A ring of workers over ZeroMQ: each worker sends to the next and receives from the previous.

No memory node is involved. An array is summed by the bandwidth-optimal all-reduce of Patarasuk
and Yuan (2009). The array is cut into W parts, one for each worker. In the first W - 1 rounds
each part is sent once around the ring, and each worker adds its share. In the next W - 1 rounds
the complete parts are sent around. Each worker sends ``2 (W - 1) / W`` of the array.

Part p starts at rank p, so its sum is ``((x_p + x_p+1) + ...) + x_p-1``, indices modulo W. One
worker at a time computes it, so all workers get the same bits.

A message is a header (kind, number) and a body. A waiting worker regularly tells the next one
that it is alive. A worker that receives nothing therefore knows that its own neighbour is lost,
and tells all others by a message that is forwarded around the ring.
"""

from __future__ import annotations

import ipaddress
import struct
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
import zmq
from numpy.typing import NDArray
from zmq.utils.monitor import parse_monitor_message

from smbox.errors import ConfigError, RemoteProtocolError, WorkerLostError

__all__ = ["Exchange", "Ring"]

Exchange = Callable[[str], Sequence[str]]
"""Publishes this worker's address; returns the addresses of all workers, by rank."""

HEADER: Final = struct.Struct("<BxxxxxxxQ")
DATA: Final = 1  # number: sequence number on this edge, from 1
ALIVE: Final = 2
LOST: Final = 3  # number: the rank that is lost
TELL_S: Final = 0.25
LINGER_MS: Final = 2000


class Ring:
    """One worker's place in the ring.

    Args:
        rank: rank of this worker.
        size: number of workers, W.
        exchange: exchanges the addresses of the workers.
        host: address of this host that the previous worker can reach; of IPv6 in brackets.
            Messages are not authenticated, so it must be on a trusted network.
        timeout_s: seconds without a message after which a neighbour counts as lost.

    Raises:
        ConfigError: the rank is not below the size, or ``check_reachable`` refuses the
            addresses.
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
            raise ConfigError("rank must be below the number of workers", rank=rank, size=size)
        self.rank, self.size, self.timeout_s = rank, size, timeout_s
        self._sent = self._received = 0
        self._context = zmq.Context()
        self._before = self._socket(zmq.PULL)
        self._next = self._socket(zmq.PUSH)
        self._departures = self._before.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        try:
            port = self._before.bind_to_random_port(f"tcp://{host}")
            addresses = exchange(f"tcp://{host}:{port}")
            check_reachable(addresses)
            self._next.connect(addresses[(rank + 1) % size])
        except BaseException:
            self.close()
            raise

    def _socket(self, kind: int) -> zmq.Socket[bytes]:
        """Create a socket without a queue limit: the rounds limit the messages in flight."""
        socket = self._context.socket(kind)
        socket.setsockopt(zmq.LINGER, LINGER_MS)
        socket.setsockopt(zmq.IPV6, 1)
        socket.set_hwm(0)
        return socket

    def sum(self, array: NDArray[Any]) -> None:
        """Replace an array with its sum over all workers, in place.

        Args:
            array: ``[n]``, C-contiguous, of the same size and dtype on every worker.

        Raises:
            WorkerLostError: a worker died, left or was silent; the array is undefined.
        """
        if self.size == 1:
            return
        parts = np.array_split(array, self.size)
        for turn in range(self.size - 1):
            # Not copied: the part changes only after its sum has come around the ring.
            self._send(parts[(self.rank - turn) % self.size], copy=False)
            part = parts[(self.rank - turn - 1) % self.size]
            np.add(self._receive(part), part, out=part)
        for turn in range(self.size - 1):
            self._send(parts[(self.rank - turn + 1) % self.size])
            part = parts[(self.rank - turn) % self.size]
            part[...] = self._receive(part)

    def broadcast(self, array: NDArray[Any], source: int = 0) -> None:
        """Replace an array with that of rank ``source``, in place.

        Raises:
            WorkerLostError: see ``sum``.
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
        """Return the next array, which must have the size and dtype of ``like``."""
        self._received += 1
        silent_s = 0.0
        while True:
            frames = self._wait()
            if frames is None:
                silent_s += TELL_S  # not by the clock: this process may have been stopped
                if silent_s > self.timeout_s:
                    self._give_up(self._rank_before, "says nothing")
                self._next.send_multipart([HEADER.pack(ALIVE, 0), b""])
                continue
            silent_s = 0.0
            kind, number = self._header(frames)
            if kind == LOST:
                self._give_up(number, "was given up by another worker")
            if kind == DATA:
                return self._body(number, frames[1].buffer, like)

    def _header(self, frames: list[zmq.Frame]) -> tuple[int, int]:
        if len(frames) != 2 or len(frames[0]) != HEADER.size:
            raise RemoteProtocolError("invalid message in a ring", frames=len(frames))
        kind, number = HEADER.unpack(frames[0].bytes)
        return kind, number

    def _body(self, number: int, body: memoryview, like: NDArray[Any]) -> NDArray[Any]:
        if number != self._received or body.nbytes != like.nbytes:
            raise RemoteProtocolError(
                "the workers of the ring do different work: use the same model on all",
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
            f"rank {rank} {verdict}; the ring cannot continue without it (unequal numbers of"
            " batches: put each rank's loop inside `with optimizer.join():`)",
            rank=rank,
            timeout_s=self.timeout_s,
        )

    def close(self) -> None:
        """Leave the ring; deliver queued messages for at most LINGER_MS."""
        if self._context.closed:
            return
        self._before.disable_monitor()
        self._context.destroy()


def check_reachable(addresses: Sequence[str]) -> None:
    """Check that either all workers listen on loopback, or none.

    Raises:
        ConfigError: some do. The ring would wait until its timeout for their neighbours on
            other hosts.
    """
    private = [rank for rank, address in enumerate(addresses) if _is_loopback(address)]
    if 0 < len(private) < len(addresses):
        raise ConfigError(
            "a worker of the ring listens on loopback, where those on other hosts cannot reach"
            " it: the master's name stands for a loopback address on its own host (127.0.1.1 in"
            " /etc/hosts, for example). Set MASTER_ADDR, or SMBOX_MASTER_ADDR if it is set, to"
            " the IP address by which all hosts reach rank 0",
            rank=private[0],
            address=addresses[private[0]],
        )


def _is_loopback(address: str) -> bool:
    host = address.removeprefix("tcp://").rpartition(":")[0].strip("[]")
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:  # a name, which may be known on another host only
        return host == "localhost"

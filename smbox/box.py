"""Box: a client's connection to the address space of a memory node."""

from __future__ import annotations

import operator
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from smbox import sync
from smbox.array import bytes_of
from smbox.batch import Batch
from smbox.deadline import deadline_of
from smbox.directory import Directory
from smbox.errors import RequestTimeoutError
from smbox.lock import LEASE_S, Lock
from smbox.memory.kernels import KernelCode
from smbox.optimizer import Optimizer
from smbox.paths.requests import NodeInfo, Operation, Reading
from smbox.region import Region
from smbox.sync import Counter
from smbox.wire.header import NO_SCALE


class Box(Directory):
    """A client's connection to one memory node; a context manager.

    Thread-safe: each thread has its own channel. A forked child opens new connections when it
    first uses the box, and so does a pickled copy.

    Args:
        paths: paths to the node, shared with all objects of the box.
    """

    @property
    def address(self) -> str:
        """Address of the node; other processes can connect to it."""
        return self._paths.control().address

    @property
    def node(self) -> NodeInfo:
        """Name, id, memory and incarnation of the node, from the handshake."""
        return self._paths.control().node

    @property
    def nodes(self) -> tuple[NodeInfo, ...]:
        """All nodes of this box, in order of id; this box has one."""
        return (self.node,)

    @property
    def transport(self) -> str:
        """Transport of the data: "shm", "tcp", "ipc" or "inproc"."""
        return self._paths.data().transport

    @property
    def transport_reason(self) -> str:
        """The reason why this transport was chosen."""
        return self._paths.open().reason

    def counter(self, name: str, init: int = 0) -> Counter:
        """Return the counter ``name``; create it with the value ``init`` if it does not exist.

        Args:
            name: name of the counter, 1 to 200 bytes of printable UTF-8.
            init: first value, a signed 64-bit integer; ignored if the counter exists.

        Raises:
            TypeError, LayoutMismatchError: ``init`` is not an integer, or exceeds 64 bits;
                nothing was created.
            RequestTimeoutError: the node did not answer in time; the counter may exist.
        """
        with self._at_name(name) as paths:
            return sync.counter(paths, name, init)

    def barrier(self, name: str, parties: int, *, timeout_s: float | None = None) -> int:
        """Wait until ``parties`` callers have arrived at the barrier ``name``; it is reusable.

        Args:
            name: name of the barrier, 1 to 200 bytes of printable UTF-8.
            parties: number of callers that open the barrier.
            timeout_s: seconds to wait; None: the timeout of the box.

        Returns:
            How often the barrier had opened before: the same number for all callers that met.

        Raises:
            LayoutMismatchError: the barrier exists with another number of parties.
            RequestTimeoutError: the others did not arrive in time; this arrival was undone. If
                the outcome is "unknown", undoing it failed within a second: it may still count.
        """
        with self._at_name(name) as paths:
            return sync.barrier(paths, name, parties, timeout_s)

    def optimizer(self, region: Region, name: str, **parameters: float) -> Optimizer:
        """Return a server-side optimizer of a region; create its state if it does not exist.

        Args:
            region: the parameters, a region of a float dtype and consistency "stripe".
            name: "momentum", "nesterov", "adagrad" or "adam"; workers that give the same name
                share the state.
            parameters: ``lr`` is required; the others default to the values of torch.optim:
                momentum, eps, beta1, beta2 and initial_accumulator_value. The worker that
                creates the state decides the last one.

        Raises:
            ConfigError: the region, name or parameters are invalid; nothing was created.
            OutOfMemoryError: the node has no memory left for the state. Its first regions may
                exist: call again when there is memory, or free ``NAME/...`` by ``smbox rm``.
        """
        return Optimizer(self._paths, region, name, parameters)

    def batch(self, *, timeout_s: float | None = None) -> Batch:
        """Return a new batch: ``with box.batch() as b: b.put(r, x); b.accumulate(s, y)``.

        Args:
            timeout_s: seconds that the entire batch may take; None: the timeout of the box.
        """
        return Batch(self._paths, timeout_s)

    def put(self, address: int, x: Any, *, timeout_s: float | None = None) -> None:
        """Write the bytes of an array at a global address.

        Args:
            address: global address of the first byte, such as ``region.address``.
            x: any array with a dtype.
            timeout_s: seconds to wait; None: the timeout of the box.

        Raises:
            AddressRangeError: the range is not inside one region, or it cuts an element;
                nothing changed.
            TypeError: ``x`` is not an array, or has no dtype; nothing changed.
        """
        source = bytes_of(x)
        with self._at_address(address) as paths:
            info, first, wait_s = paths.locate(address, source.size, timeout_s)
            limit = first + source.size
            change = Operation(info, "put", KernelCode.REPLACE, NO_SCALE, first, limit, source)
            paths.finish(change, wait_s)

    def get(
        self, address: int, nbytes: int, *, timeout_s: float | None = None
    ) -> NDArray[np.uint8]:
        """Read bytes at a global address.

        Args:
            address: global address of the first byte, such as ``region.address``.
            nbytes: number of bytes.
            timeout_s: seconds to wait; None: the timeout of the box.

        Returns:
            A new array, ``u8[nbytes]``.

        Raises:
            AddressRangeError: the range is not inside one region, or it cuts an element.
            TypeError: the address or number is not an integer.
        """
        size = operator.index(nbytes)
        with self._at_address(address) as paths:
            info, first, wait_s = paths.locate(address, size, timeout_s)
            out = np.empty(size, np.uint8)
            paths.finish(Reading(info, first, first + size, out), wait_s)
        return out

    def flush(self, *, timeout_s: float | None = None) -> None:
        """Wait until all earlier changes of this box, of all threads, are committed.

        It does not wait for reads, and not for threads that wait for a counter, a version, a
        barrier or a lock.

        Args:
            timeout_s: seconds to wait; None: the timeout of the box.

        Raises:
            RequestTimeoutError: some changes are not committed; they continue.
            SmboxError: an earlier change failed, and no call has raised its error; a note tells
                how many others, of which each thread keeps the last 1000.
        """
        wanted_s = self._paths.seconds(timeout_s)
        if not self._paths.data().flush(deadline_of(wanted_s)):
            raise RequestTimeoutError(
                "not all changes were committed in time; they continue: flush again",
                op="flush",
                timeout_s=wanted_s,
                outcome="unknown",
            )

    def stats(self) -> dict[str, Any]:
        """Return the node's statistics, such as its memory and numbers of clients."""
        return self._paths.control().stats(self._paths.timeout_s)

    def lock(self, name: str, *, lease_s: float = LEASE_S, timeout_s: float = 300.0) -> Lock:
        """Return the lock ``name``; ``with box.lock("directory"):`` holds it.

        Args:
            name: name of the lock.
            lease_s: seconds without renewal after which the holder counts as dead.
            timeout_s: seconds to wait for the lock.

        Raises:
            TypeError, LimitError, ConfigError: an argument is invalid; nothing was created.
        """
        return Lock(self.home_of(name), name, lease_s=lease_s, timeout_s=timeout_s)

    def home_of(self, name: str) -> Box:  # noqa: ARG002 - there is one node
        """Return a box on the node that a name belongs to; here, this box."""
        return self

    def close(self) -> None:
        """Close the connections; regions stay at the node, and local views stay valid.

        Requests of ``_nb`` verbs that are not done are dropped, with a warning: flush first.
        If the node does not answer, this takes half a second, and up to a second more for each
        lock and membership that is held. Idempotent.
        """
        try:
            self.leave()
        finally:
            self._paths.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Box({self._paths.config.address!r})"

    def __reduce__(self) -> tuple[type[Box], tuple[object, ...]]:
        """Pickle the settings; the copy connects by itself."""
        return Box, (self._paths,)

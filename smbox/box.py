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
from smbox.paths.readings import Reading
from smbox.paths.work import NodeInfo, Operation
from smbox.region import Region
from smbox.sync import Counter


class Box(Directory):
    """A client's connection to one memory node; a context manager.

    Thread-safe: each thread has its own channel. A forked child connects anew on first use;
    a copy that was pickled, too.

    Args:
        paths: to the node, shared with the box.
    """

    @property
    def address(self) -> str:
        """The node's endpoint, for other processes to connect to."""
        return self._paths.control().address

    @property
    def node(self) -> NodeInfo:
        """What the node told about itself."""
        return self._paths.control().node

    @property
    def nodes(self) -> tuple[NodeInfo, ...]:
        """All nodes of this box, by id; this one has one."""
        return (self.node,)

    @property
    def transport(self) -> str:
        """How bytes travel: "shm", "tcp", "ipc" or "inproc"."""
        return self._paths.data().transport

    @property
    def transport_reason(self) -> str:
        """Why they travel so."""
        return self._paths.open().reason

    def counter(self, name: str, init: int = 0) -> Counter:
        """Return the counter ``name``; the first to ask creates it with the value ``init``.

        Raises:
            TypeError, LayoutMismatchError: ``init`` is no whole number of 64 bits.
        """
        return sync.counter(self._paths, name, init)

    def barrier(self, name: str, parties: int, *, timeout_s: float | None = None) -> int:
        """Wait until ``parties`` callers have come to the barrier ``name``; use it again after.

        Returns:
            How often the barrier had opened before: the same number for all who met.

        Raises:
            LayoutMismatchError: somebody uses this name with another number of parties.
            RequestTimeoutError: they did not come in time; this arrival is taken back. Where
                the outcome is "unknown", that was not done within a second: it may still count.
        """
        return sync.barrier(self._paths, name, parties, timeout_s)

    def optimizer(self, region: Region, name: str, **parameters: float) -> Optimizer:
        """Let a region take training steps by itself; see smbox/optimizer.py.

        Args:
            region: the parameters, floats.
            name: "momentum", "nesterov", "adagrad" or "adam"; workers that name the same
                one share its state.
            parameters: ``lr``, and by torch.optim's defaults momentum, eps, beta1, beta2 and
                initial_accumulator_value, which the first worker's decides.

        Raises:
            ConfigError: they make no sense together.
        """
        return Optimizer(self._paths, region, name, parameters)

    def batch(self, *, timeout_s: float | None = None) -> Batch:
        """Begin a batch: ``with box.batch() as b: b.put(r, x); b.accumulate(s, y)``."""
        return Batch(self._paths, timeout_s)

    def put(self, address: int, x: Any, *, timeout_s: float | None = None) -> None:
        """Write the bytes of ``x`` (any array with a dtype) from ``address`` on.

        Raises:
            AddressRangeError: not all in one region, or not on its elements' boundaries;
                nothing changed.
        """
        source = bytes_of(x)
        info, first, wait_s = self._paths.locate(address, source.size, timeout_s)
        limit = first + source.size
        operation = Operation(info, "put", KernelCode.REPLACE, 1, first, limit, source)
        self._paths.finish(operation, wait_s)

    def get(
        self, address: int, nbytes: int, *, timeout_s: float | None = None
    ) -> NDArray[np.uint8]:
        """Read ``nbytes`` bytes from ``address`` on, as ``u8[nbytes]``.

        Raises:
            AddressRangeError: not all in one region, or not on its elements' boundaries.
        """
        size = operator.index(nbytes)
        info, first, wait_s = self._paths.locate(address, size, timeout_s)
        out = np.empty(size, np.uint8)
        self._paths.finish(Reading(info, first, first + size, out), wait_s)
        return out

    def flush(self, *, timeout_s: float | None = None) -> None:
        """Wait until all earlier operations of this Box, every thread's, are complete.

        Raises:
            RequestTimeoutError: some are not, in time; they go on.
            SmboxError: what an earlier operation failed with that nobody waited for.
        """
        wanted_s = self._paths.seconds(timeout_s)
        if not self._paths.data().flush(deadline_of(wanted_s)):
            raise RequestTimeoutError(
                "not all operations were complete in time; flush again to go on",
                op="flush",
                timeout_s=wanted_s,
                outcome="unknown",
            )

    def stats(self) -> dict[str, Any]:
        """Return the node's own figures."""
        return self._paths.control().stats(self._paths.timeout_s)

    def lock(self, name: str, *, lease_s: float = LEASE_S, timeout_s: float = 300.0) -> Lock:
        """Return a lock by its name; ``with box.lock("directory") as lock:`` holds it.

        Args:
            name: of the lock.
            lease_s: seconds without renewal after which its holder counts as dead.
            timeout_s: how long to wait for it, in seconds.

        Raises:
            TypeError, LimitError, ConfigError: impossible arguments; nothing was made.
        """
        return Lock(self.home_of(name), name, lease_s=lease_s, timeout_s=timeout_s)

    def home_of(self, name: str) -> Box:  # noqa: ARG002 - there is one node
        """Return a box on the one node that a name belongs to: this one."""
        return self

    def close(self) -> None:
        """Let go of everything; regions stay at the node, local views stay valid.

        A node that does not answer is waited for half a second, and a second for each lock and
        membership that is held.
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
        """Travel as settings."""
        return Box, (self._paths,)

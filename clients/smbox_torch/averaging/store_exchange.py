"""How the workers of a ring learn each other's addresses: torch's store, and who never came.

It is the store that torch's own process groups begin with. A client of it waits for ever where
the process that serves it is stopped, whatever timeout it was given (PyTorch 2.13): so a thread
asks it, and whoever needs the addresses waits for the thread.
"""

from __future__ import annotations

import datetime as dt
import queue
import threading
from collections.abc import Sequence
from typing import Any, Final

import torch.distributed as dist
from torch.distributed.rendezvous import rendezvous

from smbox.deadline import deadline_of, left_s
from smbox.errors import ConfigError, WorkerLostError
from smbox_torch.world import World

__all__ = ["StoreExchange"]

PREFIX: Final = "smbox_torch.ring"
ANSWER_S: Final = 2.0
"""How long after its own timeout the store may take to say who is missing."""

LONGEST_S: Final = 1e9
"""The longest wait that torch's store can be told: it has no infinite one."""


class StoreExchange:
    """Tells a worker's address and learns all others'.

    Rank 0 may be the one that serves the store, so it is kept as long as this object.

    Args:
        world: who this process is; its master is where the store is.
        timeout_s: until a worker that does not come is given up, in seconds.

    Raises:
        ConfigError: the world has no master.
    """

    def __init__(self, world: World, timeout_s: float) -> None:
        if world.master_addr is None or world.master_port is None:
            raise ConfigError(
                "several workers need an address to meet at: start by smbox run or torchrun,"
                " or give exchange="
            )
        host = f"[{world.master_addr}]" if ":" in world.master_addr else world.master_addr
        self._url = f"tcp://{host}:{world.master_port}"
        self._world = world
        self._timeout_s = min(timeout_s, LONGEST_S)
        self._store: Any = None

    def __call__(self, address: str) -> Sequence[str]:
        """Tell this worker's address and learn the others'.

        Raises:
            WorkerLostError: workers never came, or nobody answers where the store is.
        """
        told: queue.SimpleQueue[Sequence[str] | Exception] = queue.SimpleQueue()
        asking = threading.Thread(
            target=self._tell, args=(address, told), name="smbox-ring-store", daemon=True
        )
        asking.start()
        try:
            found = told.get(timeout=self._timeout_s + ANSWER_S)
        except queue.Empty:
            raise self._silent() from None
        if isinstance(found, Exception):
            raise found
        return found

    def _tell(self, address: str, told: queue.SimpleQueue[Sequence[str] | Exception]) -> None:
        """Put all addresses, or why there are none; in a thread of its own."""
        try:
            told.put(self._addresses(address))
        except dist.DistNetworkError as error:
            lost = self._silent()
            lost.__cause__ = error
            told.put(lost)
        except Exception as error:  # noqa: BLE001 - raised by whoever waits for this thread
            told.put(error)

    def _addresses(self, address: str) -> Sequence[str]:
        deadline_s = deadline_of(self._timeout_s)
        # A meeting of one: rank 0 would wait for the others without telling who is missing.
        meeting = rendezvous(self._url, self._world.rank, 1, timeout=_span(deadline_s))
        store, _, _ = next(iter(meeting))
        prefix = f"{PREFIX}.{self._world.restart}"
        names = [f"{prefix}.{rank}" for rank in range(self._world.world_size)]
        store.set(names[self._world.rank], address)
        try:
            store.wait(names, _span(deadline_s))
        except dist.DistStoreError:
            missing = [rank for rank, name in enumerate(names) if not store.check([name])]
            if missing:
                raise self._lost(missing) from None
        self._store = store
        return [store.get(name).decode() for name in names]

    def _lost(self, missing: Sequence[int]) -> WorkerLostError:
        ranks = ", ".join(map(str, missing))
        return WorkerLostError(
            f"rank {ranks} never came to the ring", rank=missing[0], timeout_s=self._timeout_s
        )

    def _silent(self) -> WorkerLostError:
        return WorkerLostError(
            "torch's store, where the workers of a ring meet, does not answer: is rank 0, or"
            " the torchrun that serves it, running there?",
            rank=0,
            store=self._url,
            timeout_s=self._timeout_s,
        )


def _span(deadline_s: float) -> dt.timedelta:
    return dt.timedelta(seconds=max(left_s(deadline_s), 1e-3))

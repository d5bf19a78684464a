"""The exchange of a ring's addresses through torch's store, with errors for missing workers.

Torch's process groups also start from this store. If the process that serves it is stopped, a
client waits for ever in spite of its timeout (PyTorch 2.13). So a separate thread queries the
store, and the caller waits for the thread with a timeout.
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
from smbox.limits import start_thread
from smbox.work import Pause
from smbox_torch.world import World, bracketed

__all__ = ["StoreExchange"]

PREFIX: Final = "smbox_torch.ring"
ANSWER_S: Final = 2.0
"""Additional time for the store to report the missing workers after its own timeout."""

GAVE_UP: Final = ""
"""Replaces the address of a worker whose exchange failed: an error for a worker that never came
must not name it too."""

LONGEST_S: Final = 1e9
"""The longest timeout of torch's store, which has no infinite timeout."""

kept_stores: Final = dict[tuple[str, int], Any]()
"""The last store of each address and rank. Rank 0 may serve it, and must do so until its
process ends: another worker may begin its next exchange while rank 0 has no ring."""


class StoreExchange:
    """Publishes this worker's address and returns the addresses of all workers.

    All workers must make the exchanges of a run in the same order.

    Args:
        world: place of this process; its master address is that of the store.
        timeout_s: longest wait for the other workers, in seconds.

    Raises:
        ConfigError: the world has no master.
    """

    def __init__(self, world: World, timeout_s: float) -> None:
        if world.master_addr is None or world.master_port is None:
            raise ConfigError(
                "several workers need torch's store to find each other: start by smbox run or"
                " torchrun, or pass exchange="
            )
        self._url = f"tcp://{bracketed(world.master_addr)}:{world.master_port}"
        self._world = world
        self._timeout_s = min(timeout_s, LONGEST_S)

    def __call__(self, address: str) -> Sequence[str]:
        """Publish this worker's address and return all addresses, by rank.

        Raises:
            WorkerLostError: workers did not join, or the store does not answer.
        """
        results: queue.SimpleQueue[Sequence[str] | Exception] = queue.SimpleQueue()
        asking = threading.Thread(
            target=self._exchange,
            args=(address, results),
            name="smbox-ring-store",
            daemon=True,
        )
        start_thread(asking.start)
        try:
            found = results.get(timeout=self._timeout_s + ANSWER_S)
        except queue.Empty:
            raise self._silent() from None
        if isinstance(found, Exception):
            raise found
        return found

    def _exchange(
        self, address: str, results: queue.SimpleQueue[Sequence[str] | Exception]
    ) -> None:
        """Queue all addresses, or the error; runs in a separate thread."""
        deadline_s, pause = deadline_of(self._timeout_s), Pause()
        while True:
            try:
                results.put(self._addresses(address, deadline_s))
            except dist.DistNetworkError as error:
                # Rank 0 serves the store, and may be started again.
                if self._world.rank and pause.sleep(deadline_s):
                    continue
                lost = self._silent()
                lost.__cause__ = error
                results.put(lost)
            except Exception as error:  # noqa: BLE001 - the waiting thread raises it
                results.put(error)
            return

    def _addresses(self, address: str, deadline_s: float) -> Sequence[str]:
        # A world of one: else rank 0 would wait without reporting the missing workers.
        meeting = rendezvous(self._url, self._world.rank, 1, timeout=_span(deadline_s))
        store, _, _ = next(iter(meeting))
        kept_stores[self._url, self._world.rank] = store
        prefix = f"{PREFIX}.{self._world.restart}"
        completed = f"{prefix}.{self._world.rank}.completed"
        number = store.add(completed, 0)
        names = [f"{prefix}.{number}.{rank}" for rank in range(self._world.world_size)]
        store.set(names[self._world.rank], address)
        try:
            found = self._await(store, names, deadline_s)
        except WorkerLostError:
            store.set(names[self._world.rank], GAVE_UP)  # else others may use it in a retry
            raise
        store.add(completed, 1)
        return found

    def _await(self, store: Any, names: Sequence[str], deadline_s: float) -> list[str]:
        """Wait for the addresses of all workers; those of workers that gave up do not count."""
        pause = Pause()
        while True:
            try:
                store.wait(names, _span(deadline_s))
            except dist.DistStoreError:
                missing = [rank for rank, name in enumerate(names) if not store.check([name])]
                if missing:
                    raise self._lost(missing) from None
            found = [store.get(name).decode() for name in names]
            if GAVE_UP not in found:
                return found
            if not pause.sleep(deadline_s):
                raise self._lost([r for r, each in enumerate(found) if each == GAVE_UP])

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

"""A box without a node: a dict of numpy arrays with Box's and Region's verbs, in one process.

A minimal memory node under one lock: the reference that other boxes are compared with, and a
memory for unit tests of algorithms. Several workers of one process share it, each through its
own client. Its log records all operations in the order in which they took effect.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self

import numpy as np

from smbox.dtypes import by_name
from smbox.errors import (
    LayoutMismatchError,
    RegionExistsError,
    RegionNotFoundError,
    RequestTimeoutError,
)
from smbox.memory.kernels import OptimizerCode
from smbox.optimizer import first_values, parameters_in, settings_of
from smbox.testing.model_optimizer import ModelOptimizer
from smbox.testing.model_region import ModelRegion, Stored

__all__ = ["Entry", "ModelBox", "ModelCounter", "Store"]

TIMEOUT_S = 30.0


class Entry(NamedTuple):
    """One operation on a region, in the order in which they took effect."""

    client: str
    op: str
    region: str


@dataclass
class Store:
    """The state that all clients of one ModelBox share; ``changed`` is its lock."""

    changed: threading.Condition = field(default_factory=threading.Condition)
    regions: dict[str, Stored] = field(default_factory=dict)
    counters: dict[str, int] = field(default_factory=dict)
    arrived: dict[str, int] = field(default_factory=dict)
    log: list[Entry] = field(default_factory=list)

    def wait_for(
        self, is_true: Callable[[], bool], op: str, timeout_s: float | None = None
    ) -> None:
        """Wait, with the lock held, for a condition; RequestTimeoutError at the timeout."""
        limit_s = TIMEOUT_S if timeout_s is None else timeout_s
        if not self.changed.wait_for(is_true, limit_s):
            raise RequestTimeoutError(
                "it did not happen", op=op, timeout_s=limit_s, outcome="none"
            )


class ModelBox:
    """One client of a model memory.

    Args:
        client: its name in the log.
        store: the memory; None: a new one.
    """

    address = "model://"

    def __init__(self, client: str = "", store: Store | None = None) -> None:
        self.name = client
        self.store = store or Store()

    def client(self, name: str) -> ModelBox:
        """Return another client of the same memory."""
        return ModelBox(name, self.store)

    @property
    def log(self) -> list[Entry]:
        """All operations on regions, of all clients, in order."""
        return self.store.log

    def order(self, region: str, *ops: str) -> list[str]:
        """Return the clients that did one of these ops on the region, in order."""
        return [e.client for e in self.log if e.region == region and e.op in ops]

    def create(
        self,
        name: str,
        *,
        shape: int | tuple[int, ...],
        dtype: Any = "float32",
        init: Any = 0.0,
        exist_ok: bool = False,
        consistency: str = "stripe",
    ) -> ModelRegion:
        """Create a region filled with ``init``, or find an equal one with ``exist_ok``."""
        contents = np.empty(
            shape, dtype=by_name(dtype).numpy if isinstance(dtype, str) else dtype
        )
        contents[...] = init
        with self.store.changed:
            found = self.store.regions.get(name)
            if found is None:
                self.store.regions[name] = Stored(contents, consistency)
                self.store.changed.notify_all()
            elif not exist_ok:
                raise RegionExistsError("this name is taken", name=name)
            elif (found.data.shape, found.data.dtype) != (contents.shape, contents.dtype):
                raise LayoutMismatchError("it exists with another layout", name=name)
        return self._region(name)

    def attach(self, name: str, *, timeout_s: float | None = TIMEOUT_S) -> ModelRegion:
        """Return an existing region; wait until it exists."""
        with self.store.changed:
            if not self.store.changed.wait_for(
                lambda: name in self.store.regions, timeout_s or 0.0
            ):
                raise RegionNotFoundError("no region has this name", name=name)
        return self._region(name)

    def _region(self, name: str) -> ModelRegion:
        def note(op: str) -> None:
            self.store.log.append(Entry(self.name, op, name))

        return ModelRegion(name, self.store.regions[name], self.store, note)

    def optimizer(self, region: ModelRegion, name: str, **parameters: float) -> ModelOptimizer:
        """Return a server-side optimizer of a region."""
        code = OptimizerCode[name.upper()]
        settings = settings_of(code, parameters)
        states = {
            state: self.create(
                f"{region.name}/{name}.{state}",
                shape=region.shape,
                dtype=region.dtype,
                init=value,
                exist_ok=True,
            )
            for state, value in first_values(code, settings).items()
        }
        return ModelOptimizer(
            self.store,
            lambda op: self.store.log.append(Entry(self.name, op, region.name)),
            code,
            parameters_in(code, settings),
            self.store.regions[region.name],
            states,
            [self.store.regions[state.name] for state in states.values()],
        )

    def free(self, name: str) -> None:
        """Free a region; its operations then raise RegionFreedError."""
        with self.store.changed:
            if name not in self.store.regions:
                raise RegionNotFoundError("no region has this name", name=name)
            self.store.regions.pop(name).freed = True
            self.store.changed.notify_all()

    def regions(self) -> list[ModelRegion]:
        """Return all regions, by name."""
        with self.store.changed:
            return [self._region(name) for name in sorted(self.store.regions)]

    def counter(self, name: str, init: int = 0) -> ModelCounter:
        """Return the counter of this name; a new one begins at ``init``."""
        with self.store.changed:
            self.store.counters.setdefault(name, init)
        return ModelCounter(name, self.store)

    def barrier(self, name: str, parties: int, *, timeout_s: float | None = None) -> int:
        """Wait until ``parties`` calls were made in this round; return its number, from 0.

        A timeout or interrupt undoes the arrival.
        """
        with self.store.changed:
            mine = self.store.arrived.get(name, 0)
            self.store.arrived[name] = mine + 1
            self.store.changed.notify_all()
            needed = (mine // parties + 1) * parties
            try:
                self.store.wait_for(
                    lambda: self.store.arrived[name] >= needed, "barrier", timeout_s
                )
            except BaseException:
                self.store.arrived[name] -= self.store.arrived[name] < needed
                raise
            return mine // parties

    def flush(self, *, timeout_s: float | None = None) -> None:
        """Return at once: every operation is complete when its call returns."""

    def close(self) -> None:
        """Do nothing; the memory is garbage-collected."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class ModelCounter:
    """A shared integer."""

    def __init__(self, name: str, store: Store) -> None:
        self.name = name
        self._store = store

    @property
    def value(self) -> int:
        """Current value."""
        with self._store.changed:
            return self._store.counters[self.name]

    def add(self, amount: int = 1) -> int:
        """Add ``amount``; return the old value."""
        return self._change(lambda old: old + amount)

    def compare_and_swap(self, old: int, new: int) -> bool:
        """Set the value to ``new`` if it is ``old``; return whether it was."""
        return self._change(lambda value: new if value == old else value) == old

    def wait(self, at_least: int, *, timeout_s: float | None = None) -> int:
        """Wait until the value is ``at_least`` or more; return it."""
        with self._store.changed:
            self._store.wait_for(
                lambda: self._store.counters[self.name] >= at_least, "wait", timeout_s
            )
            return self._store.counters[self.name]

    def _change(self, change: Callable[[int], int]) -> int:
        with self._store.changed:
            old = self._store.counters[self.name]
            self._store.counters[self.name] = change(old)
            self._store.changed.notify_all()
            return old

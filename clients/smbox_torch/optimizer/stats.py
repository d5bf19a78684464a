"""Statistics of an optimizer wrapper: exchanges, staleness, time waited and hidden, bytes."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from smbox_torch.optimizer.slow_exchange import Watch

__all__ = ["Recorder", "Stats"]


@dataclass(frozen=True)
class Stats:
    """A snapshot of one worker's statistics since its start.

    Attributes:
        steps: number of local optimizer steps.
        exchanges: number of exchanges with the center.
        staleness: histogram of the number of exchanges by other workers between two of this
            worker.
        exchange_ms: duration of the exchanges, in milliseconds.
        waited_ms: part of it that the training thread waited, in milliseconds.
        nbytes: bytes transferred between worker and memory, both directions.
    """

    steps: int
    exchanges: int
    staleness: dict[int, int]
    exchange_ms: float
    waited_ms: float
    nbytes: int

    @property
    def hidden_ms(self) -> float:
        """Time of exchanges that overlapped with computation, in milliseconds."""
        return max(0.0, self.exchange_ms - self.waited_ms)

    @property
    def hidden_share(self) -> float:
        """``1 - waited / exchange``: 0 without overlap, 1 with full overlap."""
        return self.hidden_ms / self.exchange_ms if self.exchange_ms > 0 else 0.0

    @property
    def staleness_mean(self) -> float:
        """Mean number of exchanges by other workers between two of this worker."""
        seen = sum(self.staleness.values())
        return sum(k * n for k, n in self.staleness.items()) / seen if seen else 0.0

    def as_dict(self) -> dict[str, Any]:
        """Return all statistics by name, for a log."""
        return {
            "steps": self.steps,
            "exchanges": self.exchanges,
            "staleness": dict(sorted(self.staleness.items())),
            "staleness_mean": self.staleness_mean,
            "exchange_ms": self.exchange_ms,
            "waited_ms": self.waited_ms,
            "hidden_ms": self.hidden_ms,
            "hidden_share": self.hidden_share,
            "nbytes": self.nbytes,
        }


@dataclass
class Recorder:
    """Accumulates the statistics of a wrapper; used by one thread at a time."""

    steps: int = 0
    exchanges: int = 0
    exchange_s: float = 0.0
    waited_s: float = 0.0
    others_s: float = 0.0  # part of it: spent waiting for other workers
    nbytes: int = 0
    staleness: Counter[int] = field(default_factory=Counter)
    watch: Watch = field(default_factory=Watch)

    def step(self) -> None:
        """Count a local step, and check the time waited."""
        self.steps += 1
        self.watch.observe(self.waited_s - self.others_s, self.nbytes, self.exchanges)

    def exchange(self, *, took_s: float, nbytes: int) -> None:
        """Count one exchange, its duration in seconds and its bytes."""
        self.exchanges += 1
        self.exchange_s += took_s
        self.nbytes += nbytes

    def waited(self, waited_s: float) -> None:
        """Count time that the training thread waited for an exchange, in seconds."""
        self.waited_s += waited_s

    @contextmanager
    def waiting_for_others(self) -> Iterator[None]:
        """Count the block, a part of an exchange, as a wait for other workers."""
        began_s = time.monotonic()
        try:
            yield
        finally:
            self.others_s += time.monotonic() - began_s

    def behind(self, others: int) -> None:
        """Count the exchanges by other workers between two of this worker."""
        self.staleness[max(0, others)] += 1

    def snapshot(self) -> Stats:
        """Return the current statistics."""
        return Stats(
            steps=self.steps,
            exchanges=self.exchanges,
            staleness=dict(self.staleness),
            exchange_ms=1000.0 * self.exchange_s,
            waited_ms=1000.0 * self.waited_s,
            nbytes=self.nbytes,
        )

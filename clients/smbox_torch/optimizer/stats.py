"""What an optimizer wrapper counted: exchanges, staleness, time waited and hidden, bytes.

The wrapper measures, this adds up.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from smbox_torch.optimizer.slow_exchange import Watch

__all__ = ["Recorder", "Stats"]


@dataclass(frozen=True)
class Stats:
    """A snapshot of one worker's counts since it began.

    Attributes:
        steps: local optimizer steps.
        exchanges: transfers with the center.
        staleness: exchanges of others between two of mine -> how often that happened.
        exchange_ms: time the exchanges took, in milliseconds.
        waited_ms: how much of it the training thread stood still.
        nbytes: bytes moved between worker and memory, both directions.
    """

    steps: int
    exchanges: int
    staleness: dict[int, int]
    exchange_ms: float
    waited_ms: float
    nbytes: int

    @property
    def hidden_ms(self) -> float:
        """Time of exchanges that passed behind computation, in milliseconds."""
        return max(0.0, self.exchange_ms - self.waited_ms)

    @property
    def hidden_share(self) -> float:
        """``1 - waited / exchange``: 0 hides nothing, 1 everything."""
        return self.hidden_ms / self.exchange_ms if self.exchange_ms > 0 else 0.0

    @property
    def staleness_mean(self) -> float:
        """Mean number of others' exchanges between two of mine."""
        seen = sum(self.staleness.values())
        return sum(k * n for k, n in self.staleness.items()) / seen if seen else 0.0

    def as_dict(self) -> dict[str, Any]:
        """Return all figures under their names, ready for a log."""
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
    """Adds up what a wrapper reports; its methods are called by one thread at a time."""

    steps: int = 0
    exchanges: int = 0
    exchange_s: float = 0.0
    waited_s: float = 0.0
    nbytes: int = 0
    staleness: Counter[int] = field(default_factory=Counter)
    watch: Watch = field(default_factory=Watch)

    def step(self) -> None:
        """Count a local step, and look at the time that was waited."""
        self.steps += 1
        self.watch.look(self.waited_s, self.nbytes, self.exchanges)

    def exchange(self, *, took_s: float, nbytes: int) -> None:
        """Count one exchange that took so long and moved so much."""
        self.exchanges += 1
        self.exchange_s += took_s
        self.nbytes += nbytes

    def waited(self, waited_s: float) -> None:
        """Count time the training thread stood still for an exchange, in seconds."""
        self.waited_s += waited_s

    def behind(self, others: int) -> None:
        """Count how many exchanges of others came between two of mine."""
        self.staleness[max(0, others)] += 1

    def snapshot(self) -> Stats:
        """Return the counts as they are now."""
        return Stats(
            steps=self.steps,
            exchanges=self.exchanges,
            staleness=dict(self.staleness),
            exchange_ms=1000.0 * self.exchange_s,
            waited_ms=1000.0 * self.waited_s,
            nbytes=self.nbytes,
        )

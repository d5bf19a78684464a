"""Scalars: writes the statistics of a wrapper to TensorBoard or a similar log.

    writer = torch.utils.tensorboard.SummaryWriter()
    Scalars(opt, writer)                    # from now on opt.step() writes

Every ``period`` steps it writes one point per scalar, for the steps since the previous
point: ``PREFIX/staleness`` (mean), ``PREFIX/exchange_ms`` and ``PREFIX/waited_ms`` (per
step), ``PREFIX/nbytes`` (per step) and ``PREFIX/hidden_share``.
"""

from __future__ import annotations

from typing import Any, Protocol

from smbox_torch.checks import whole
from smbox_torch.optimizer.stats import Stats

__all__ = ["Counting", "Scalars", "Writer"]


class Writer(Protocol):
    """A log for scalars; torch's SummaryWriter is one."""

    def add_scalar(self, tag: str, scalar_value: float, global_step: int) -> Any:
        """Add a point to a curve."""


class Counting(Protocol):
    """An optimizer with statistics; every wrapper of smbox_torch is one."""

    def stats(self) -> Stats:
        """Return the counts so far."""

    def register_step_post_hook(self, hook: Any) -> Any:
        """Register a function that is called after every step."""


class Scalars:
    """Write an optimizer's statistics to a log until this object is closed.

    Args:
        optimizer: a wrapper of smbox_torch.
        writer: the log; the caller closes it.
        period: steps between two points.
        prefix: prefix of the scalars' names.
    """

    def __init__(
        self, optimizer: Counting, writer: Writer, *, period: int = 10, prefix: str = "smbox"
    ) -> None:
        period = whole("period", period)
        self._optimizer = optimizer
        self._writer = writer
        self._period = period
        self._prefix = prefix
        self._before = optimizer.stats()
        self._hook = optimizer.register_step_post_hook(self._after_step)

    def _after_step(self, *_: object) -> None:
        if self._optimizer.stats().steps - self._before.steps >= self._period:
            self.write()

    def write(self) -> None:
        """Write the points for the steps since the last points; no effect without steps."""
        before, now = self._before, self._optimizer.stats()
        if now.steps == before.steps:
            return
        for name, value in since(before, now).items():
            self._writer.add_scalar(f"{self._prefix}/{name}", value, now.steps)
        self._before = now

    def close(self) -> None:
        """Write the last points, and detach from the optimizer."""
        self._hook.remove()
        self.write()


def since(before: Stats, now: Stats) -> dict[str, float]:
    """Return the scalars for the steps between two snapshots; there is at least one step."""
    steps = now.steps - before.steps
    staleness = {k: n - before.staleness.get(k, 0) for k, n in now.staleness.items()}
    part = Stats(
        steps=steps,
        exchanges=now.exchanges - before.exchanges,
        staleness=staleness,
        exchange_ms=now.exchange_ms - before.exchange_ms,
        waited_ms=now.waited_ms - before.waited_ms,
        nbytes=now.nbytes - before.nbytes,
    )
    points = {
        "exchange_ms": part.exchange_ms / steps,
        "waited_ms": part.waited_ms / steps,
        "nbytes": part.nbytes / steps,
    }
    if part.exchange_ms > 0:
        points["hidden_share"] = part.hidden_share
    if any(staleness.values()):
        points["staleness"] = part.staleness_mean
    return points

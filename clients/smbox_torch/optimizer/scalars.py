"""What a wrapper counts, written to a log while it trains: TensorBoard's or any like it.

    writer = torch.utils.tensorboard.SummaryWriter()
    Scalars(opt, writer)                    # that is all; opt.step() writes from now on

Every ``period`` steps of the optimizer one point per scalar, over the steps since the point
before: ``PREFIX/staleness`` (mean), ``PREFIX/exchange_ms`` and ``PREFIX/waited_ms`` (per
step), ``PREFIX/nbytes`` (per step) and ``PREFIX/hidden_share``.
"""

from __future__ import annotations

from typing import Any, Protocol

from smbox_torch.checks import whole
from smbox_torch.optimizer.stats import Stats

__all__ = ["Counting", "Scalars", "Writer"]


class Writer(Protocol):
    """What is asked of a log; torch's SummaryWriter is one."""

    def add_scalar(self, tag: str, scalar_value: float, global_step: int) -> Any:
        """Add a point to a curve."""


class Counting(Protocol):
    """An optimizer that counts; every wrapper of smbox_torch is one."""

    def stats(self) -> Stats:
        """Return the counts so far."""

    def register_step_post_hook(self, hook: Any) -> Any:
        """Have something called after every step."""


class Scalars:
    """Writes an optimizer's counts to a log until it is closed.

    Args:
        optimizer: a wrapper of smbox_torch.
        writer: the log; closing it stays the caller's.
        period: steps between two points.
        prefix: of the scalars' names.
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
        """Write the points of the steps since the last ones now; nothing without steps."""
        before, now = self._before, self._optimizer.stats()
        if now.steps == before.steps:
            return
        for name, value in since(before, now).items():
            self._writer.add_scalar(f"{self._prefix}/{name}", value, now.steps)
        self._before = now

    def close(self) -> None:
        """Write what is left, and leave the optimizer alone from now on."""
        self._hook.remove()
        self.write()


def since(before: Stats, now: Stats) -> dict[str, float]:
    """Return the scalars of the steps between two snapshots, of which there is at least one."""
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

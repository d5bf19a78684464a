"""The results of the demo, compared with one process: a table and a plot."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from rich.table import Table
from torch import nn

from smbox_torch.demo import digits
from smbox_torch.demo.worker import Outcome, Settings
from smbox_torch.plotting import save

__all__ = ["baseline", "draw", "path_to_memory", "table"]


def baseline(
    settings: Settings, workers: int, data: tuple[digits.Digits, digits.Digits]
) -> Outcome:
    """Train one process with one thread on as many pictures as all workers together."""
    torch.set_num_threads(1)
    train, held_out = data
    model = digits.network()
    sgd = torch.optim.SGD(model.parameters(), lr=settings.lr, momentum=settings.momentum)
    steps = settings.steps * workers
    outcome = Outcome(rank=0, samples=steps * settings.batch)
    each = digits.batches(train, settings.batch, steps, seed=workers)
    for step, (x, y) in enumerate(each, start=1):
        sgd.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()  # type: ignore[no-untyped-call]
        sgd.step()
        if step % (settings.look * workers) == 0:
            outcome.curve.append((step, loss.item(), digits.accuracy(model, held_out)))
    outcome.center = digits.accuracy(model, held_out)
    return outcome


def path_to_memory(nodes: int) -> str:
    """Return how workers reach the memory node: `smbox run` uses tcp only for several nodes."""
    return "over tcp" if nodes > 1 else "in mapped memory"


def table(workers: Sequence[Outcome], alone: Outcome, nodes: int) -> Table:
    """Return a table that compares the run with the single process."""
    shown = Table(title="Held-out digits: the center of all workers beside one process")
    for column in ("", f"{len(workers)} workers, {nodes} nodes", "one process"):
        shown.add_column(column, justify="right" if column else "left")
    center = next(outcome.center for outcome in workers if outcome.center is not None)
    assert alone.center is not None
    samples = sum(outcome.samples for outcome in workers)
    shown.add_row("accuracy", f"{center:.1%}", f"{alone.center:.1%}")
    shown.add_row("pictures trained on", f"{samples:,}", f"{alone.samples:,}")
    roots = [o.exchange for o in workers if o.center is not None]
    shown.add_row("exchanges with the center", f"{_total(roots, 'exchanges'):,.0f}", "")
    shown.add_row(f"  moved {path_to_memory(nodes)}", _mib(_total(roots, "nbytes")), "")
    shown.add_row("  staleness, mean", f"{_mean(roots, 'staleness_mean'):.2f}", "")
    shown.add_row("  hidden share", f"{_hidden(roots):.0%}", "")
    rounds = [outcome.gradients for outcome in workers]
    shown.add_row("gradients inside nodes", f"{_total(rounds, 'exchanges'):,.0f}", "")
    shown.add_row("  moved in shared memory", _mib(_total(rounds, "nbytes")), "")
    shown.add_row("  hidden share", f"{_hidden(rounds):.0%}", "")
    return shown


def draw(workers: Sequence[Outcome], alone: Outcome, path: Path) -> None:
    """Plot the curves of loss and accuracy into a file (PNG if the path has no suffix).

    Raises:
        ConfigError: the file cannot be written.
    """
    from matplotlib.figure import Figure  # noqa: PLC0415 - an extra, and slow to import

    figure = Figure(figsize=(9, 3.6), layout="constrained")
    panels = figure.subplots(1, 2)
    for index, label in ((1, "loss"), (2, "accuracy on held-out digits")):
        axes = panels[index - 1]
        for outcome in workers:
            _line(axes, outcome, index, len(workers), f"worker {outcome.rank}")
        _line(axes, alone, index, 1, "one process")
        axes.set_xlabel("thousand pictures trained on")
        axes.set_ylabel(label)
        axes.grid(alpha=0.3)
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside right center")
    save(figure, path, dpi=120)


def _line(axes: Any, outcome: Outcome, index: int, scale: int, label: str) -> None:
    per_step = outcome.samples / outcome.curve[-1][0] * scale
    x = [point[0] * per_step / 1000 for point in outcome.curve]
    style = {"linewidth": 1.2} if scale > 1 else {"linewidth": 2.0, "color": "black"}
    axes.plot(x, [point[index] for point in outcome.curve], label=label, **style)


def _total(counts: Sequence[dict[str, Any]], name: str) -> float:
    return float(sum(each[name] for each in counts))


def _mean(counts: Sequence[dict[str, Any]], name: str) -> float:
    return _total(counts, name) / max(1, len(counts))


def _hidden(counts: Sequence[dict[str, Any]]) -> float:
    took = _total(counts, "exchange_ms")
    return _total(counts, "hidden_ms") / took if took else 0.0


def _mib(nbytes: float) -> str:
    return f"{nbytes / 2**20:.1f} MiB"

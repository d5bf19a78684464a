"""The plot of a plan: images per second over the number of workers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from smbox_torch.planning.rates import Prediction
from smbox_torch.plotting import save

__all__ = ["draw"]


def draw(found: Sequence[Prediction], title: str, path: Path) -> None:
    """Write the plot; the suffix of the path selects the format.

    Args:
        found: predictions, in any order.
        title: title of the plot.
        path: file of the plot; PNG if it has no suffix.

    Raises:
        ConfigError: the file cannot be written.
    """
    from matplotlib.figure import Figure  # noqa: PLC0415 - an extra, and slow to import

    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.subplots()
    for method in dict.fromkeys(each.method for each in found):
        points = sorted(
            (each.workers, each.images_per_s) for each in found if each.method == method
        )
        workers, rates = zip(*points, strict=True)
        axes.plot(workers, rates, marker="o", markersize=3, label=method)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("workers")
    axes.set_ylabel("images/s of all workers, predicted")
    axes.set_title(title, fontsize="medium")
    axes.grid(alpha=0.3, which="both")
    axes.legend(fontsize="small")
    save(figure, path, dpi=110)

"""The tables of the page, as Markdown, from the results of rows. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from pages import table
from result_files import Result

from server_or_ring.rows import Row, parameters_of, predicted
from smbox_torch.planning.methods import METHODS

TITLES = {
    "server-sync": "ParameterServer",
    "server-async": "Downpour (asynchronous server)",
    "ring": "RingAllReduce",
    "ddp": "DDP, gloo",
    "hybrid": "HybridSGD, period 10",
    "easgd": "EASGD, period 10",
    "easgd-striped": "EASGD, period 10, 2 nodes",
}
GOAL = 0.20
MB = 1e6

Results = Mapping[Row, Result]


def error(row: Row, result: Result) -> float:
    """Return by how much the planner's images/s differ from those measured, signed."""
    foreseen = predicted(row, parameters_of(row.model)).images_per_s
    return float(foreseen / result["images_per_s"] - 1)


def measured(results: Results) -> str:
    """Lay out what was measured, with the planner's figure beside it."""
    head = ("model", "method", "workers", "images/s", "speed-up", "utilisation")
    head += ("planner, images/s", "error", "saturates (planner)")
    lines = []
    for row, result in ordered(results):
        foreseen = predicted(row, parameters_of(row.model))
        lines.append(
            (
                row.model,
                TITLES[row.way],
                str(row.workers),
                f"{result['images_per_s']:.2f}",
                f"{result['speed_up']:.2f}",
                f"{result['utilisation']:.0%}",
                f"{foreseen.images_per_s:.2f}",
                f"{error(row, result):+.0%}",
                str(foreseen.saturates),
            )
        )
    return table(head, lines, words=2)


def ordered(results: Results) -> list[tuple[Row, Result]]:
    """Return rows and results by model, way and number of workers."""
    return [(row, results[row]) for row in sorted_rows(list(results))]


def sorted_rows(rows: Sequence[Row]) -> list[Row]:
    """Sort by model, way and number of workers."""
    models, ways = list(dict.fromkeys(row.model for row in rows)), list(METHODS)
    return sorted(
        rows, key=lambda row: (models.index(row.model), ways.index(row.way), row.workers)
    )


def moved(results: Results) -> str:
    """Lay out bytes and packets of an iteration: of the busiest node and the busiest worker."""
    head = ("model", "method", "workers", "node in, MB", "node out, MB", "worker in, MB")
    head += ("worker out, MB", "node packets in", "node packets out", "cores busy")
    lines = []
    for row, result in ordered(results):
        hosts = result["hosts"]
        nodes = [each for name, each in hosts.items() if name.startswith("node")]
        workers = [each for name, each in hosts.items() if not name.startswith("node")]
        lines.append(
            (
                row.model,
                TITLES[row.way],
                str(row.workers),
                *(f"{max(each[name] for each in nodes) / MB:.1f}" for name in BYTES),
                *(f"{max(each[name] for each in workers) / MB:.1f}" for name in BYTES),
                *(f"{max(each[name] for each in nodes):.0f}" for name in PACKETS),
                f"{result['cores']:.1f}",
            )
        )
    return table(head, lines, words=2)


BYTES = ("in_bytes", "out_bytes")
PACKETS = ("in_packets", "out_packets")


def foreseen(rows: Sequence[Row]) -> str:
    """Lay out the planner's figures of rows that nobody measures."""
    head = ("model", "method", "workers", "images/s", "speed-up", "utilisation", "saturates")
    lines = []
    for row in rows:
        each = predicted(row, parameters_of(row.model))
        lines.append(
            (
                row.model,
                TITLES[row.way],
                str(row.workers),
                f"{each.images_per_s:.2f}",
                f"{each.speed_up:.2f}",
                f"{each.utilisation:.0%}",
                str(each.saturates),
            )
        )
    return table(head, lines, words=2)


def errors(results: Results) -> str:
    """Lay out the planner's errors by way, and judge the median of all."""
    of_all = [error(row, result) for row, result in results.items()]
    middle = statistics.median(map(abs, of_all))
    count = sum(each > 0 for each in of_all)
    verdict = "met" if middle <= GOAL else "**missed**"
    lines = []
    for way in METHODS:
        mine = [error(row, result) for row, result in results.items() if row.way == way]
        if mine:
            size = statistics.median(abs(each) for each in mine)
            span = f"{min(mine):+.0%} to {max(mine):+.0%}"
            lines.append((TITLES[way], str(len(mine)), f"{size:.0%}", span))
    head = ("method", "rows", "median of the size", "lowest to highest")
    return (
        f"Median of the size of the error over {len(of_all)} rows: {middle:.1%}; goal: at most"
        f" {GOAL:.0%}, {verdict}. The errors are from {min(of_all):+.0%} to {max(of_all):+.0%};"
        f" in {count} rows the planner promises too many images/s.\n\n" + table(head, lines)
    )

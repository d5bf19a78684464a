"""L-BFGS by commands on vectors at the node, or by shipping the vectors: bytes and seconds.

python benchmarks/sandblaster.py [--only 'commands-*'] [--sizes 1000000,10000000] [--page]

Both ways minimise one separable convex function with ten pairs, over tcp to one memory node of
this host; both do the same iterations. In between, an evaluator on mapped memory, which is not
counted and not timed, leaves the gradient at x in a region. A row is kept in
sandblaster_results/ and is not measured again.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import os
import platform
import statistics
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import pages
from numpy.typing import NDArray
from rich.progress import Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

import smbox
from smbox.wire.header import HEADER_NBYTES
from smbox_torch.node_lbfgs import NodeLBFGS

ROOT: Final = Path(__file__).resolve().parent
RESULTS: Final = ROOT / "sandblaster_results"
PAGE: Final = ROOT.parent / "docs" / "experiments" / "sandblaster.md"
PART: Final = "rows"
HISTORY: Final = 10
WARM: Final = HISTORY + 1
"""Iterations before the timed ones: then all pairs are there."""

CURVATURE_MAX: Final = 1e3
ARMIJO: Final = 1e-4
Vector = NDArray[np.float32]


class Shipped:
    """The verbs of ``NodeLBFGS`` with all vectors here: gradients come, parameters go."""

    def __init__(self, box: smbox.Box, name: str, size: int) -> None:
        self._box = box
        self.x = box.create(f"{name}.x", shape=size)
        self.gradient = box.create(f"{name}.gradient", shape=size)
        self.pairs: deque[tuple[Vector, Vector, float, float]] = deque(maxlen=HISTORY)
        self._x = np.zeros(size, np.float32)
        self._g: Vector | None = None
        self._base = self._last = self._d = self._x

    def direct(self) -> float:
        """Compute d = H g; return g.d."""
        g = self._g = self.gradient.get() if self._g is None else self._g
        d, alphas = g.copy(), []
        for s, y, rho, _ in reversed(self.pairs):
            alphas.append(rho * _dot(s, d))
            d -= np.float32(alphas[-1]) * y
        if self.pairs:
            d *= np.float32(self.pairs[-1][3])
        for s, y, rho, _ in self.pairs:
            d += np.float32(alphas.pop() - rho * _dot(y, d)) * s
        self._d = d
        return _dot(g, d)

    def begin(self) -> None:
        """Note x and its gradient."""
        assert self._g is not None, "direct came before"
        self._base, self._last = self._x, self._g

    def move(self, step: float) -> None:
        """Set x = base - step d, and send it."""
        self._x = self._base - np.float32(step) * self._d
        self.x.put(self._x)

    def learn(self, step: float) -> bool:
        """Fetch the gradient, and keep the pair."""
        self._g = self.gradient.get()
        s, y = np.float32(-step) * self._d, self._g - self._last
        curvature, square = _dot(s, y), _dot(y, y)
        self.pairs.append((s, y, 1 / curvature, curvature / square))
        return True

    def close(self) -> None:
        """Free the gradient, as ``NodeLBFGS`` does."""
        self._box.free(self.gradient)


WAYS: Final[dict[str, Callable[[smbox.Box, str, int], Any]]] = {
    "commands": lambda box, name, size: NodeLBFGS(box, name, size, "float32", HISTORY),
    "vectors": Shipped,
}


def _dot(a: Vector, b: Vector) -> float:
    return float(np.dot(a, b))


class Evaluator:
    """f = sum c (x - 1)^2 / 2 with c from 1 to 1e3, on mapped memory.

    Args:
        box: on mapped memory.
        way: whose regions are used.
        size: n.
    """

    def __init__(self, box: smbox.Box, way: Any, size: int) -> None:
        self._x, self._gradient = box.attach(way.x.name), box.attach(way.gradient.name)
        self._curves = np.geomspace(1, CURVATURE_MAX, size).astype(np.float32)

    def __call__(self) -> float:
        """Leave the gradient in its region; return f."""
        off = self._x.get() - np.float32(1)
        gradient = self._curves * off
        self._gradient.put(gradient)
        return float(np.sum(off * gradient, dtype=np.float64)) / 2


def measure(way: str, size: int, iterations: int, tick: Callable[[], None]) -> dict[str, Any]:
    """Run one row.

    Returns:
        seconds of each timed iteration, without evaluations; trials, the evaluations of all
        of them; bytes that the node received and sent, headers included; the losses.
    """
    memory = (2 * HISTORY + 8) * size * 4 + (64 << 20)
    with (
        smbox.local(memory, timeout_s=120.0) as here,
        smbox.connect(here.address, transport="tcp", timeout_s=120.0) as box,
    ):
        vectors = WAYS[way](box, "run", size)
        evaluate = Evaluator(here, vectors, size)
        losses, spans, trials = [evaluate()], [], 0
        before: dict[str, Any] = {}
        for index in range(WARM + iterations):
            if index == WARM:
                before, spans, trials = here.stats(), [], 0
            span_s, tried, loss = _iterate(vectors, evaluate, losses[-1])
            spans.append(span_s)
            trials += tried
            losses.append(loss)
            tick()
        after = here.stats()
    return {
        "way": way,
        "size": size,
        "seconds": spans,
        "trials": trials,
        "nbytes": _moved(after) - _moved(before),
        "losses": losses,
        "cpu": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
    }


def _iterate(vectors: Any, evaluate: Evaluator, loss: float) -> tuple[float, int, float]:
    """Do one iteration; return its seconds without evaluations, its trials and its loss."""
    since_s = time.perf_counter()
    slope = vectors.direct()
    vectors.begin()
    step = 1.0 if vectors.pairs else min(1.0, slope**-0.5)
    span_s, trials = 0.0, 0
    while True:
        vectors.move(step)
        span_s += time.perf_counter() - since_s
        found = evaluate()
        trials += 1
        since_s = time.perf_counter()
        if found <= loss - ARMIJO * step * slope or trials == 20:
            break
        step /= 2
    vectors.learn(step)
    return span_s + time.perf_counter() - since_s, trials, found


def _moved(stats: dict[str, Any]) -> int:
    """Bytes of all bodies and headers; a request has one header and its reply another."""
    requests = sum(count for name, count in stats.items() if name.startswith("requests."))
    moved: int = stats["received_nbytes"] + stats["sent_nbytes"]
    return moved + 2 * HEADER_NBYTES * requests


def rows(folder: Path) -> list[dict[str, Any]]:
    """Read the rows that are there, by size and way."""
    found = [json.loads(path.read_text()) for path in folder.glob("*.json")]
    return sorted(found, key=lambda row: (row["size"], row["way"]))


def table(found: Sequence[dict[str, Any]]) -> str:
    """Lay out the page's table."""
    head = (
        "parameters",
        "way",
        "bytes an iteration",
        "of the parameters' bytes",
        "s an iteration: median (least to most)",
        "iterations, trials",
    )
    lines = []
    for row in found:
        count, spans = len(row["seconds"]), row["seconds"]
        nbytes = row["nbytes"] / count
        cells = (
            f"{row['size']:,}",
            row["way"],
            f"{nbytes:,.0f}",
            f"{nbytes / (4 * row['size']):.2%}",
            f"{statistics.median(spans):.3f} ({min(spans):.3f} to {max(spans):.3f})",
            f"{count}, {row['trials']}",
        )
        lines.append(cells)
    return pages.table(head, lines, words=2)


def write_page(found: Sequence[dict[str, Any]], page: Path) -> None:
    """Write the table between the page's comments, and the picture beside the page."""
    picture = page.with_suffix(".png")
    shown = f"![Bytes and seconds an iteration]({picture.name})"
    pages.fill(page, {PART: f"\n{table(found)}\n\n{shown}\n"})
    draw(found, picture)


def draw(found: Sequence[dict[str, Any]], path: Path) -> None:
    """Draw bytes and seconds of an iteration over the number of parameters."""
    from matplotlib.figure import Figure  # noqa: PLC0415 - slow to import

    figure = Figure(figsize=(9, 3.5), layout="constrained")
    for axes, what in zip(figure.subplots(1, 2), ("bytes", "seconds"), strict=True):
        for way in WAYS:
            mine = [row for row in found if row["way"] == way]
            figures = [
                row["nbytes"] / len(row["seconds"])
                if what == "bytes"
                else statistics.median(row["seconds"])
                for row in mine
            ]
            axes.loglog([row["size"] for row in mine], figures, "o-", label=way)
        axes.set(xlabel="parameters", title=f"{what} an iteration")
        axes.grid(visible=True, alpha=0.3)
        axes.legend()
    figure.savefig(path, dpi=110)


def main(words: Sequence[str] | None = None) -> int:
    """Measure what is missing, and with --page write the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="*", help="rows, as WAY-SIZE with wildcards")
    parser.add_argument("--sizes", default="1000000,10000000", help="numbers, with commas")
    parser.add_argument("--iterations", type=int, default=10)
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--page", nargs="?", type=Path, const=PAGE, help="write this page")
    told = parser.parse_args(words)
    named = [(way, int(size)) for size in told.sizes.split(",") for way in WAYS]
    wanted = [
        (way, size, told.results / f"{way}-{size}.json")
        for way, size in named
        if fnmatch.fnmatch(f"{way}-{size}", told.only)
    ]
    missing = [each for each in wanted if not each[2].exists()]
    told.results.mkdir(parents=True, exist_ok=True)
    columns = (TextColumn("{task.description}"), TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns) as progress:
        work = sum(size for _, size, _ in missing) * (WARM + told.iterations)
        task = progress.add_task("", total=work)
        for way, size, path in missing:
            progress.update(task, description=f"{way}, {size:,} parameters")
            row = measure(
                way, size, told.iterations, lambda size=size: progress.advance(task, size)
            )
            beside = path.with_suffix(".part")
            beside.write_text(json.dumps(row, indent=1) + "\n")
            beside.rename(path)
    found = rows(told.results)
    print(table(found))
    if told.page and found:
        write_page(found, told.page)
    return 0


if __name__ == "__main__":
    sys.exit(main())

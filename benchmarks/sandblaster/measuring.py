"""Runs a row: one memory node of this host, a coordinator over tcp, an evaluator beside it.

Both ways minimise one separable convex function with ten pairs, and do the same iterations. In
between, the evaluator on mapped memory, which is not counted and not timed, leaves the gradient
at x in a region.
"""

from __future__ import annotations

import os
import platform
import time
from typing import Any, Final

import numpy as np
from pending_runs import Tick
from result_files import Result

import smbox
from sandblaster.rows import HISTORY, WARM, Row
from sandblaster.ways import WAYS
from smbox.wire.header import HEADER_NBYTES

CURVATURE_MAX: Final = 1e3
ARMIJO: Final = 1e-4


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


def measure(row: Row, iterations: int, tick: Tick) -> Result:
    """Run one row.

    Returns:
        seconds of each timed iteration, without evaluations; trials, the evaluations of all
        of them; bytes that the node received and sent, headers included; the losses.
    """
    way, size, count = row.way, row.size, WARM + iterations
    memory = (2 * HISTORY + 8) * size * 4 + (64 << 20)
    with (
        smbox.local(memory, timeout_s=120.0) as here,
        smbox.connect(here.address, transport="tcp", timeout_s=120.0) as box,
    ):
        vectors = WAYS[way](box, "run", size)
        evaluate = Evaluator(here, vectors, size)
        losses, spans, trials = [evaluate()], [], 0
        before: dict[str, Any] = {}
        for index in range(count):
            if index == WARM:
                before, spans, trials = here.stats(), [], 0
            span_s, tried, loss = _iterate(vectors, evaluate, losses[-1])
            spans.append(span_s)
            trials += tried
            losses.append(loss)
            tick((index + 1) / count)
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

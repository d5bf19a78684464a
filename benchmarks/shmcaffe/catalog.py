"""The rows: one process, A16 and H 4 x 4, by SEASGD's three steps and by the fused exchange."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from rows import Row

WORKERS, GROUPS, BATCH = 16, 4, 8
MOVING_RATE, PERIOD = 0.2, 1
"""ShmCaffe's, for any number of workers (ICDCS 2018)."""
LR = 0.02

DEFAULT_RATE: Final = {"period": PERIOD, "increment": "{rank}"}
"""0.9 / workers, where read and add as separate operations are stable."""
SEASGD: Final = DEFAULT_RATE | {"moving_rate": MOVING_RATE}
FUSED: Final = {"period": PERIOD, "moving_rate": MOVING_RATE, "overlap": True}
STEPS, ONE_OPERATION = "SEASGD's three steps", "fused exchange"


@dataclass(frozen=True)
class Set:
    """Pictures to train on.

    Attributes:
        title: for the page.
        epochs: how often all workers together see every training picture.
        training_pictures: for estimates.
    """

    title: str
    epochs: float
    training_pictures: int


SETS: Final = {
    "digits": Set("scikit-learn's digits", 30.0, 1_293),
    "cifar10": Set("CIFAR-10", 1.5, 45_000),
}


def _row(name: str, title: str, kind: str, nodes: int, options: dict[str, Any]) -> Row:
    table = STEPS if "seasgd" in name else ONE_OPERATION
    return Row(
        name, title, table, kind, LR, workers=WORKERS, nodes=nodes, batch=BATCH, options=options
    )


ROWS: Final = {
    row.name: row
    for row in (
        Row("one", "one process", "", "one", LR, workers=1, batch=GROUPS * BATCH),
        _row("a16-seasgd", "A16", "seasgd", WORKERS, SEASGD),
        _row(
            "h4x4-seasgd",
            "H 4 x 4",
            "hybrid",
            GROUPS,
            SEASGD | {"exchange": "seasgd", "overlap": True},
        ),
        _row("a16-seasgd-default", "A16, default rate", "seasgd", WORKERS, DEFAULT_RATE),
        _row("a16-fused", "A16", "easgd", WORKERS, FUSED),
        _row("h4x4-fused", "H 4 x 4", "hybrid", GROUPS, FUSED),
    )
}
BASELINE, ASYNC, HYBRID = "one", "a16-seasgd", "h4x4-seasgd"

"""How long runs will take: by the table of kinds at first, then by finished runs."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from typing import Any

from parts import SLOWNESS
from rows import Row, Settings
from trainers import KINDS

START_S = 8.0
"""From the start of the processes until all have met, and judging in the end."""

TRAINING_PICTURES = 45_000
RESNET_FACTOR = 8.0
"""A ResNet's time per picture beside that of the convolutions."""


def prior_s(settings: Settings, training_pictures: int = TRAINING_PICTURES) -> float:
    """Return a run's time on two cores by the table of kinds, in seconds."""
    row = settings.row
    each_s = KINDS[row.kind].ms_per_sample / 1000.0
    if row.network == "resnet":
        each_s *= RESNET_FACTOR
    if row.workers > 4:
        each_s *= 1.3
    if row.scenario == "slow" and KINDS[row.kind].pace == "all":
        each_s *= SLOWNESS
    pictures = round(settings.share * training_pictures)
    return START_S + each_s * settings.samples(pictures)


class Estimator:
    """Knows what the finished runs took.

    Args:
        finished: results of this machine.
        training_pictures: of the set.
    """

    def __init__(
        self, finished: Iterable[dict[str, Any]], training_pictures: int = TRAINING_PICTURES
    ) -> None:
        self._training_pictures = training_pictures
        self._took: dict[str, list[float]] = {}
        self._ratios: list[float] = []
        for result in finished:
            self.learn(Settings.from_json(result["settings"]), result["took_s"])

    def learn(self, settings: Settings, took_s: float) -> None:
        """Take in a finished run."""
        self._took.setdefault(_same(settings), []).append(took_s)
        self._ratios.append(took_s / self._prior_s(settings))

    def seconds(self, settings: Settings) -> float:
        """Return how long a run will take: as its row did before, else by prior and machine."""
        if _same(settings) in self._took:
            return statistics.fmean(self._took[_same(settings)])
        return self._prior_s(settings) * (
            statistics.median(self._ratios) if self._ratios else 1.0
        )

    def _prior_s(self, settings: Settings) -> float:
        return prior_s(settings, self._training_pictures)


def _same(settings: Settings) -> str:
    row: Row = settings.row
    return f"{row.name} {settings.epochs:g} {settings.share:g}"


def hours(seconds: float) -> str:
    """Word a time in hours and minutes."""
    minutes = round(seconds / 60)
    return f"{minutes // 60} h {minutes % 60:02} min"

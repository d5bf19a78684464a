"""How long runs will take: the guess by the table of kinds."""

from __future__ import annotations

import functools
from collections.abc import Iterable

from estimator import Estimator
from parts import SLOWNESS
from result_files import Result
from rows import Settings
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


def estimator(
    finished: Iterable[Result], training_pictures: int = TRAINING_PICTURES
) -> Estimator[Settings]:
    """Return an estimator that knows what the finished runs took.

    Args:
        finished: results of this machine.
        training_pictures: of the set.
    """
    found = Estimator(functools.partial(prior_s, training_pictures=training_pictures), _alike)
    for result in finished:
        found.learn(Settings.from_json(result["settings"]), result["took_s"])
    return found


def _alike(settings: Settings) -> tuple[str, float, float]:
    return settings.row.name, settings.epochs, settings.share

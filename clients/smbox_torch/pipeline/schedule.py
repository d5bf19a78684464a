"""Schedules of a pipeline: in which order a stage computes its micro-batches. Pure.

S stages, stage s from 0, m micro-batches. Both orders compute forwards and backwards of a stage
in the order of the micro-batches, so sums of gradients are those of one process that takes the
micro-batches in turn; and both end with all of them, so no parameter changes within a batch.

    gpipe   all forwards, then all backwards; a stage holds m micro-batches
            (GPipe, Huang et al. 2019, arXiv:1811.06965; there the last backward is first)
    1f1b    S - 1 - s forwards, then one forward and one backward in turn, then the backwards
            that are left; a stage holds S - s micro-batches at most
            (PipeDream-Flush, Narayanan et al. 2021, arXiv:2006.09503)

The share of time that a stage idles is the same, for equal stages: (S - 1) / (m + S - 1).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Literal, NamedTuple

__all__ = ["SCHEDULES", "Task", "gpipe", "one_forward_one_backward"]


class Task(NamedTuple):
    """What a stage computes next: forward or backward of a micro-batch."""

    kind: Literal["forward", "backward"]
    micro_batch: int


def gpipe(stage: int, stages: int, micro_batches: int) -> list[Task]:  # noqa: ARG001 - a Schedule
    """Return the tasks of a stage by GPipe: the same at every stage."""
    return _warm(micro_batches, micro_batches)


def one_forward_one_backward(stage: int, stages: int, micro_batches: int) -> list[Task]:
    """Return the tasks of a stage by 1F1B."""
    return _warm(stages - 1 - stage, micro_batches)


def _warm(first: int, micro_batches: int) -> list[Task]:
    """Return ``first`` forwards, then forwards and backwards in turn, then backwards."""
    first = min(first, micro_batches)
    tasks = [Task("forward", number) for number in range(first)]
    for number in range(micro_batches):
        if number + first < micro_batches:
            tasks.append(Task("forward", number + first))
        tasks.append(Task("backward", number))
    return tasks


Schedule = Callable[[int, int, int], list[Task]]

SCHEDULES: Final[dict[str, Schedule]] = {"1f1b": one_forward_one_backward, "gpipe": gpipe}
"""By the name that a user gives."""

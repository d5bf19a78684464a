"""Schedules of a pipeline: the order in which a stage computes its micro-batches. Pure.

There are S stages, numbered from s = 0, and m micro-batches. Both schedules compute the
forwards of a stage in the order of the micro-batches, and so the backwards. So gradients are
summed as by one process that computes the micro-batches one after another. Both complete all
micro-batches of a batch, so no parameter changes within a batch.

    gpipe   all forwards, then all backwards; a stage holds m micro-batches
            (GPipe, Huang et al. 2019, arXiv:1811.06965; the paper starts with the last
            backward)
    1f1b    S - 1 - s forwards, then one forward and one backward in turn, then the remaining
            backwards; a stage holds at most S - s micro-batches
            (PipeDream-Flush, Narayanan et al. 2021, arXiv:2006.09503)

If all stages take equally long, a stage idles for the same share of time in both schedules:
(S - 1) / (m + S - 1).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Literal, NamedTuple

__all__ = ["SCHEDULES", "Task", "gpipe", "one_forward_one_backward"]


class Task(NamedTuple):
    """One computation of a stage: the forward or the backward of a micro-batch."""

    kind: Literal["forward", "backward"]
    micro_batch: int


def gpipe(stage: int, stages: int, micro_batches: int) -> list[Task]:  # noqa: ARG001 - a Schedule
    """Return the tasks of a stage in GPipe's order, which is the same at every stage."""
    return _tasks(micro_batches, micro_batches)


def one_forward_one_backward(stage: int, stages: int, micro_batches: int) -> list[Task]:
    """Return the tasks of a stage in 1F1B order."""
    return _tasks(stages - 1 - stage, micro_batches)


def _tasks(first: int, micro_batches: int) -> list[Task]:
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
"""Schedules by the name that users pass."""

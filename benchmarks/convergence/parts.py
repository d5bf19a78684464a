"""Each worker's part of a run: how many steps, from when, and whether it is killed.

A scenario happens to the last worker. All workers together do the same number of steps in every
scenario, so that its accuracy can be compared with the undisturbed run:

    slow     it computes at a quarter of the others' speed; the steps are divided by speed.
             Workers that wait for it, as its group or its staleness bound demands, are as slow.
    killed   it is killed (SIGKILL) after half of its steps; the survivors do the rest.
    joining  it starts when the first worker is half through, and does half a share.

Whoever cannot step without the last worker shares its fate: the workers of its host with
HybridSGD, all workers with SyncGroup.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from rows import Row

Scope = Literal["worker", "node", "all"]

SLOWNESS = 4.0
HALF = 0.5


@dataclass(frozen=True)
class Part:
    """What one worker does.

    Attributes:
        steps: of this worker.
        first: how far the run is when it begins; it starts at once if this is 0.
        last: how far the run is after its last step, for the learning rate's schedule.
        is_killed: whether it is killed after its last step.
        ends: whether it is expected to be there in the end.
        slowness: time of one of its gradients as a multiple of the others'.
    """

    steps: int
    first: float = 0.0
    last: float = 1.0
    is_killed: bool = False
    ends: bool = True
    slowness: float = 1.0

    def done(self, step: int) -> float:
        """Return how far the run is before a step, counted from 1."""
        return self.first + (self.last - self.first) * (step - 1) / self.steps


def parts(row: Row, samples: int, *, pace: Scope, fate: Scope) -> list[Part]:
    """Divide a run's samples among its workers.

    Args:
        row: of the run.
        samples: of all workers together.
        pace: who waits for a slow worker.
        fate: who cannot go on without a worker that is not there.

    Returns:
        A part for each rank.
    """
    share = samples / (row.workers * row.batch)
    if row.scenario == "slow":
        return _slow(row, share, _together(row, pace))
    absent = _together(row, fate)
    if row.scenario == "killed":
        return _killed(row, share, absent)
    if row.scenario == "joining":
        return _joining(row, share, absent)
    return [Part(_count(share))] * row.workers


def _together(row: Row, scope: Scope) -> Sequence[int]:
    """Return the last rank and those that are bound to it."""
    size = {"worker": 1, "node": row.workers // row.nodes, "all": row.workers}[scope]
    return range(row.workers - size, row.workers)


def _count(steps: float) -> int:
    return max(1, round(steps))


def _slow(row: Row, share: float, bound: Sequence[int]) -> list[Part]:
    speeds = [1.0 / SLOWNESS if rank in bound else 1.0 for rank in range(row.workers)]
    steps = [share * row.workers * speed / sum(speeds) for speed in speeds]
    last = row.workers - 1
    return [
        Part(_count(mine), slowness=SLOWNESS if rank == last else 1.0)
        for rank, mine in enumerate(steps)
    ]


def _killed(row: Row, share: float, lost: Sequence[int]) -> list[Part]:
    survivors = row.workers - len(lost)
    more = share * HALF * len(lost) / survivors if survivors else 0.0
    every, half = _count(share), _count(share * HALF)
    # Those that step together do so with one learning rate.
    bound, killed = (
        Part(every, ends=False),
        Part(half, last=half / every, is_killed=True, ends=False),
    )
    return [*[Part(_count(share + more))] * survivors, *[bound] * (len(lost) - 1), killed]


def _joining(row: Row, share: float, late: Sequence[int]) -> list[Part]:
    present = row.workers - len(late)
    if not present:
        raise ValueError(f"{row.name}: nobody can join workers that only start together")
    more = share * HALF * len(late) / present
    return [
        Part(_count(share * HALF), first=HALF) if rank in late else Part(_count(share + more))
        for rank in range(row.workers)
    ]

"""One worker's waits for the others in a box: how long, how often, and whom it names."""

from __future__ import annotations

import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from smbox.errors import RequestTimeoutError, StepMismatchError, WorkerLostError
from smbox.testing.model_box import ModelBox
from smbox_torch.averaging.box_sum import POLL_S, BoxSum
from smbox_torch.averaging.summed_mean import STEPS
from smbox_torch.workers.team import DIED, LEFT, FixedTeam


class ToldTeam(FixedTeam):
    """A team whose members die, leave and come as the test tells."""

    def __init__(
        self,
        rank: int = 0,
        size: int = 3,
        lost: Callable[[], dict[int, str]] = dict[int, str],
        present: Callable[[], list[int]] | None = None,
        poll_s: float = math.inf,
    ) -> None:
        super().__init__(ModelBox(), "run", rank, size)
        self.lost, self.poll_s = lost, poll_s
        self.present = present or super().present


class TimingBox(ModelBox):
    """A box whose barriers let the first two meetings through, and then time out at once."""

    def __init__(self, outcome: str = "none") -> None:
        super().__init__()
        self.outcome = outcome
        self.waits: list[float] = []

    def barrier(self, name: str, parties: int, *, timeout_s: float) -> None:
        if "added" in name:
            self.waits.append(timeout_s)
            raise RequestTimeoutError("late", timeout_s=timeout_s, outcome=self.outcome)


def sums(box: TimingBox, ranks: list[int] | None = None, **told) -> Callable[[], torch.Tensor]:
    """Return the first round of rank 0 of three."""
    weight = torch.nn.Parameter(torch.ones(2))
    made = BoxSum(box, "run", ToldTeam(**told), timeout_s=60.0, ranks=ranks)
    made.create([weight], [])
    row = torch.zeros(box.attach("run.rows0").shape[1], dtype=torch.float64)
    return lambda: made.table(row, [], torch.zeros(0))


def test_an_arrival_that_may_count_is_not_repeated_and_the_whole_wait_is_told():
    box = TimingBox("unknown")
    with pytest.raises(RequestTimeoutError) as caught:
        sums(box)()
    assert len(box.waits) == 1
    assert caught.value.facts["timeout_s"] == 60.0


@pytest.mark.parametrize("poll_s", [0.01, 9.0])
def test_lost_workers_are_looked_for_often(poll_s: float):
    box = TimingBox("unknown")
    with pytest.raises(RequestTimeoutError):
        sums(box, poll_s=poll_s)()
    assert box.waits == [min(poll_s, POLL_S)]


def test_a_worker_that_died_is_named_before_those_that_left_because_of_it():
    with pytest.raises(WorkerLostError, match=f"rank 2 {DIED}"):
        sums(TimingBox(), lost=lambda: {1: LEFT, 2: DIED})()


def test_what_a_worker_recorded_before_it_left_is_read_after_it_is_found_gone():
    box = TimingBox()

    def lost() -> dict[int, str]:
        if not box.waits:
            return {}
        box.attach("run.ended")[1:2].put(np.array([-1 - 2]))
        return {1: LEFT}

    with pytest.raises(WorkerLostError, match="rank 2 was given up by another"):
        sums(box, lost=lost)()


def test_who_leaves_because_another_did_not_come_is_not_named_in_its_place():
    box, weight = TimingBox("unknown"), torch.nn.Parameter(torch.ones(2))
    first, second = (BoxSum(box, "run", ToldTeam(i), timeout_s=60.0) for i in range(2))
    for each in first, second:
        each.create([weight], [])
    rows = box.attach("run.rows1")
    row = torch.zeros(rows.shape[1], dtype=torch.float64)
    row[STEPS] = 1.0
    rows[1:2].put(row.numpy().reshape(1, -1))  # the second one came, too
    with pytest.raises(RequestTimeoutError, match=r"rank \[2\] did not come"):
        first.table(row, [], torch.zeros(0))
    first.close(steps=None)
    with pytest.raises(WorkerLostError, match="rank 2 was given up by another"):
        second.table(row, [], torch.zeros(0))


def test_a_worker_that_finished_is_named_by_its_rank_in_the_run():
    class FinishedBox(TimingBox):
        def barrier(self, name: str, parties: int, *, timeout_s: float) -> None:
            self.attach("run.ended")[1:2].put(np.array([1 + 7]))
            super().barrier(name, parties, timeout_s=timeout_s)

    with pytest.raises(StepMismatchError) as caught:
        sums(FinishedBox(), ranks=[2, 5, 6])()
    assert (caught.value.facts["rank"], caught.value.facts["steps"]) == (5, 7)


def test_a_worker_that_comes_during_a_check_is_not_lost(monkeypatch):
    for name, value in ("RANK", "0"), ("WORLD_SIZE", "3"), ("TORCHELASTIC_RUN_ID", "one"):
        monkeypatch.setenv(name, value)

    class BeginningBox(TimingBox):
        def barrier(self, name: str, parties: int, *, timeout_s: float) -> None:
            super().barrier("added", parties, timeout_s=timeout_s)

    box = BeginningBox("unknown")

    def present() -> list[int]:
        came = box.attach("run.came")
        came[1:2].put(came[0:1].get())  # it joined after the others were counted
        return [0, 2]

    with pytest.raises(RequestTimeoutError):
        sums(box, present=present)()


def test_a_worker_whose_lease_ends_between_two_looks_has_died_and_not_left(monkeypatch):
    for name, value in ("RANK", "0"), ("WORLD_SIZE", "2"), ("TORCHELASTIC_RUN_ID", "one"):
        monkeypatch.setenv(name, value)
    box, alive = ModelBox(), [0, 1]

    def present() -> list[int]:
        found = alive.copy()
        alive[1:] = []
        return found

    def lost() -> dict[int, str]:
        return {} if 1 in present() else {1: DIED}

    one, other = (
        BoxSum(box, "run", ToldTeam(rank, 2, lost, present, 0.01), timeout_s=60.0)
        for rank in range(2)
    )
    one.create([torch.zeros(2)], [])
    other.create([torch.zeros(2)], [])
    with pytest.raises(WorkerLostError, match="rank 1 died"):
        one.table(torch.zeros(8), [], torch.zeros(0))


class KilledBox(ModelBox):
    """A box whose worker is killed in its first round, after or before it arrives."""

    def __init__(self, memory: ModelBox, *, arrives: bool) -> None:
        super().__init__(store=memory.store)
        self._arrives = arrives

    def barrier(self, name: str, parties: int, *, timeout_s: float | None = None) -> int:
        if ".added." in name:
            self.store.arrived[name] = self.store.arrived.get(name, 0) + self._arrives
            raise SystemExit
        return super().barrier(name, parties, timeout_s=timeout_s)


class ImpatientBox(ModelBox):
    """A box whose rounds time out at once."""

    def barrier(self, name: str, parties: int, *, timeout_s: float | None = None) -> int:
        timeout_s = 0.0 if ".added." in name else timeout_s
        try:
            return super().barrier(name, parties, timeout_s=timeout_s)
        except RequestTimeoutError as error:
            error.facts["outcome"] = "unknown"  # it is not repeated
            raise


def test_a_worker_that_was_killed_in_a_round_opens_no_barrier_of_a_later_run():
    """Without a launcher, whose starts have other barriers."""

    def work(box: ModelBox, rank: int) -> None:
        made = BoxSum(box, "run", FixedTeam(box, "run", rank, 2), timeout_s=60.0)
        made.create([torch.zeros(1)], [])
        row = torch.zeros(box.attach("run.rows0").shape[1], dtype=torch.float64)
        made.table(row, [torch.zeros(1)], torch.zeros(0))

    memory = ModelBox()
    late, killed = (KilledBox(memory, arrives=arrives) for arrives in (False, True))
    with ThreadPoolExecutor(2) as pool:
        for first in late, ImpatientBox(store=memory.store):
            one, other = pool.submit(work, first, 0), pool.submit(work, killed, 1)
            with pytest.raises((SystemExit, RequestTimeoutError)):
                one.result()
            with pytest.raises(SystemExit):
                other.result()
            killed = late

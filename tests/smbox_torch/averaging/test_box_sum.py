"""One worker's waits for the others in a box: how long, how often, and whom it names."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from smbox.errors import (
    LeaseLostError,
    RequestTimeoutError,
    StepMismatchError,
    WorkerLostError,
)
from smbox.testing.model_box import ModelBox
from smbox.testing.model_region import ModelRegion
from smbox_torch.averaging.box_sum import POLL_S, BoxSum
from smbox_torch.workers.team import DIED, LEFT, FixedTeam

Sum = tuple[BoxSum, Callable[[], torch.Tensor]]


class ToldTeam(FixedTeam):
    """A team whose members die, leave and come as the test tells."""

    def __init__(
        self,
        rank: int = 0,
        size: int = 3,
        lost: Callable[[], dict[int, str]] = dict[int, str],
        present: Callable[[], list[int]] | None = None,
        poll_s: float = 0.01,
        generation: int | None = None,
    ) -> None:
        super().__init__(ModelBox(), "run", rank, size)
        self.generation = generation
        self.lost, self.poll_s = lost, poll_s
        self.present = present or super().present


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time limits of all waits for other workers, which time out at once."""
    found: list[float] = []

    def wait(region: ModelRegion, version: int, *, timeout_s: float | None = None) -> int:
        found.append(timeout_s)
        raise RequestTimeoutError("late", timeout_s=timeout_s)

    monkeypatch.setattr(ModelRegion, "wait", wait)
    return found


def come(box: ModelBox, rank: int, *meetings: str) -> None:
    """Let a worker come to its first meeting of each name."""
    token = zlib.crc32(box.attach("run.came").get().tobytes())
    for what in meetings:
        rows = box.create(f"run.met.{what}", shape=(3, 2), dtype="int64", exist_ok=True)
        rows[rank : rank + 1].put(np.array([[token, 1]]))


def made(box: ModelBox, timeout_s: float = 60.0, ranks: list[int] | None = None, **told) -> Sum:
    """Return the object of one of three workers, and the function that does its first round."""
    one = BoxSum(box, "run", ToldTeam(**told), timeout_s=timeout_s, ranks=ranks)
    one.create([torch.nn.Parameter(torch.ones(2))], [])
    row = torch.zeros(box.attach("run.rows0").shape[1], dtype=torch.float64)
    return one, lambda: one.table(row, [], torch.zeros(0))


def begun(box: ModelBox, *args, **told) -> Callable[[], torch.Tensor]:
    """Return the first round of rank 0, whose other workers have come to begin it."""
    _, table = made(box, *args, **told)
    for rank in 1, 2:
        come(box, rank, "begun", "cleared")
    return table


def test_who_did_not_come_and_the_whole_wait_are_told(waits):
    with pytest.raises(RequestTimeoutError, match=r"rank \[1, 2\] did not come") as caught:
        begun(ModelBox(), timeout_s=0.05)()
    assert caught.value.facts["timeout_s"] == 0.05


@pytest.mark.parametrize("poll_s", [0.01, 9.0])
def test_lost_workers_are_looked_for_often(waits, poll_s: float):
    table = begun(ModelBox(), lost=lambda: {1: DIED} if waits else {}, poll_s=poll_s)
    with pytest.raises(WorkerLostError):
        table()
    assert waits == [min(poll_s, POLL_S)]


def test_a_worker_that_died_is_named_before_those_that_left_because_of_it(waits):
    with pytest.raises(WorkerLostError, match=f"rank 2 {DIED}"):
        begun(ModelBox(), lost=lambda: {1: LEFT, 2: DIED})()


def test_what_a_worker_recorded_before_it_left_is_read_after_it_is_found_gone(waits):
    box = ModelBox()

    def lost() -> dict[int, str]:
        if not waits:
            return {}
        box.attach("run.ended")[1:2].put(np.array([-1 - 2]))
        return {1: LEFT}

    with pytest.raises(WorkerLostError, match="rank 2 was given up by another"):
        begun(box, lost=lost)()


def test_who_leaves_because_another_did_not_come_is_not_named_in_its_place(waits):
    box = ModelBox()
    (first, first_round), (_, second_round) = (made(box, 0.05, rank=rank) for rank in range(2))
    come(box, 2, "begun", "cleared")
    come(box, 1, "begun", "cleared", "added")
    with pytest.raises(RequestTimeoutError, match=r"rank \[2\] did not come"):
        first_round()
    first.close(steps=None)
    with pytest.raises(WorkerLostError, match="rank 2 was given up by another"):
        second_round()


def test_a_worker_that_finished_is_named_by_its_rank_in_the_run(waits):
    box = ModelBox()
    table = begun(box, ranks=[2, 5, 6])
    box.attach("run.ended")[1:2].put(np.array([1 + 7]))
    with pytest.raises(StepMismatchError) as caught:
        table()
    assert (caught.value.facts["rank"], caught.value.facts["steps"]) == (5, 7)


def test_a_worker_that_comes_during_a_check_is_not_lost(waits, monkeypatch):
    for name, value in ("RANK", "0"), ("WORLD_SIZE", "3"), ("TORCHELASTIC_RUN_ID", "one"):
        monkeypatch.setenv(name, value)
    box, present = ModelBox(), [0, 2]

    def counted() -> list[int]:
        found = present.copy()
        came = box.attach("run.came")
        came[1:2].put(came[0:1].get())  # it joined after the others were counted
        present[:] = [0, 1, 2]
        return found

    with pytest.raises(RequestTimeoutError):
        made(box, 0.05, present=counted)[1]()


@pytest.mark.parametrize("call", ["get", "put"])
def test_a_memory_node_that_is_silent_for_a_while_ends_no_meeting(monkeypatch, call: str):
    box = ModelBox()
    one, _ = made(box)
    for rank in 1, 2:
        come(box, rank, "begun")
    plain, silences = getattr(ModelRegion, call), iter(range(3))

    def silent(region: ModelRegion, *args) -> object:
        if ".met." in region.name and next(silences, None) is not None:
            raise RequestTimeoutError("the node did not answer")
        return plain(region, *args)

    monkeypatch.setattr(ModelRegion, call, silent)
    one.begin("begun")
    assert next(silences, None) is None


def test_a_memory_node_that_stays_silent_is_told_after_the_whole_wait(monkeypatch):
    one, _ = made(ModelBox(), 0.02)

    def silent(region: ModelRegion, *args) -> None:
        raise RequestTimeoutError("the node did not answer")

    monkeypatch.setattr(ModelRegion, "put", silent)
    with pytest.raises(RequestTimeoutError, match="the node did not answer"):
        one.meet("added")


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


def test_a_worker_that_was_killed_in_a_meeting_does_not_count_in_a_later_one():
    """Without a launcher, whose starts are known."""
    box = ModelBox()
    with pytest.raises(RequestTimeoutError):
        BoxSum(box, "run", ToldTeam(1, 2), timeout_s=0.02).begin("begun")
    one = BoxSum(box, "run", ToldTeam(0, 2), timeout_s=0.02)
    with pytest.raises(RequestTimeoutError, match=r"rank \[1\] did not come"):
        one.begin("begun")
    again = BoxSum(box, "run", ToldTeam(1, 2), timeout_s=60.0)
    one.timeout_s = 60.0
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda each: each.begin("begun"), [one, again]))
    one.timeout_s = 0.02
    with pytest.raises(RequestTimeoutError, match=r"rank \[1\] did not come"):
        one.meet("cleared")


def test_a_row_that_an_earlier_start_of_the_worker_writes_late_is_replaced():
    box = ModelBox()
    one, _ = made(box, 0.02)
    with pytest.raises(RequestTimeoutError):
        one.begin("begun")
    box.attach("run.met.begun")[:1].put(np.array([[7, 1]]))
    for rank in 1, 2:
        come(box, rank, "begun")
    one.begin("begun")


@pytest.mark.parametrize("when", ["before", "after"])  # the first meeting
def test_a_start_that_an_earlier_start_of_the_worker_writes_late_is_replaced(when: str):
    """The others wait for the worker that has the rank, and do not count it as lost."""
    box = ModelBox()

    def start(rank: int, generation: int) -> BoxSum:
        return BoxSum(box, "run", ToldTeam(rank, 2, generation=generation), timeout_s=60.0)

    one, other = start(0, 1), start(1, 1)
    came = box.attach("run.came")
    late = came.get()[1:]
    again = start(1, 2)
    row = came.get()[1:].tolist()
    if when == "before":
        came[1:].put(late)
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda each: each.begin("begun"), [one, again]))
    if when == "after":
        came[1:].put(late)
    for each in (one, again):
        each.timeout_s = 0.05
        with pytest.raises(RequestTimeoutError, match="did not come"):
            each.meet(f"of rank {each.rank} alone")
    assert came.get()[1:].tolist() == row
    with pytest.raises(LeaseLostError, match="rank 1"):
        other.meet("cleared")
    other.close(steps=None)
    other.close(steps=2)
    assert box.attach("run.ended").get().tolist() == [0, 0]


@pytest.mark.parametrize("launch", ["", "one"])
def test_a_worker_that_is_started_again_after_the_first_meeting_is_told_at_once(
    monkeypatch, launch: str
):
    for name, value in ("RANK", "0"), ("WORLD_SIZE", "2"), ("TORCHELASTIC_RUN_ID", launch):
        if launch:
            monkeypatch.setenv(name, value)
    box = ModelBox()
    both = [BoxSum(box, "run", ToldTeam(i, 2, poll_s=0.01), timeout_s=60.0) for i in (0, 1)]
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda each: each.begin("begun"), both))
    BoxSum(box, "run", ToldTeam(1, 2), timeout_s=60.0)
    with pytest.raises(WorkerLostError, match="rank 1 died or left, and was started again"):
        both[0].meet("cleared")

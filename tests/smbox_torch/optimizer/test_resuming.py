"""Workers that all load one file, as docs/frameworks/plain_loop.md says, or each its own."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch

from smbox.testing.model_box import ModelBox
from smbox_torch import (
    EAMSGD,
    EASGD,
    SEASGD,
    SSP,
    ADownpour,
    Dogwild,
    Downpour,
    MDownpour,
    MVADownpour,
    ServerDownpour,
    SyncEASGD,
)

torch.set_num_threads(1)
SERVER = {"server": "momentum", "settings": {"momentum": 0.0}}
PENDING = {
    "Downpour": (Downpour, {"n_push": 4, "n_fetch": 4}),
    "SSP": (SSP, {"period": 4, "staleness": 9}),
    "ADownpour": (ADownpour, {"period": 4}),
    "MVADownpour": (MVADownpour, {"period": 4}),
    "ServerDownpour": (ServerDownpour, {"n_push": 4, "n_fetch": 4, **SERVER}),
}
SHARED = {
    "EASGD overlapped": (EASGD, {"period": 3, "overlap": True}),
    "EAMSGD overlapped": (EAMSGD, {"period": 3, "overlap": True}),
    "SEASGD": (SEASGD, {"period": 3}),
    "Downpour": (Downpour, {"n_push": 3, "n_fetch": 3}),
    "SSP": (SSP, {"period": 3}),
    "ADownpour": (ADownpour, {"period": 3}),
    "MVADownpour": (MVADownpour, {"period": 3, "rate": 0.5}),
    "MDownpour": (MDownpour, {}),
    "ServerDownpour": (ServerDownpour, {"server": "momentum", "n_push": 3, "n_fetch": 3}),
}
"""Settings under which a worker has shared all of its first three steps."""


class Worker:
    """A model of four weights whose gradient is ``-1``, and lr 1: a step adds 1."""

    def __init__(self, kind: type, box: ModelBox, rank: int, workers: int, **settings) -> None:
        self.x = torch.nn.Parameter(torch.zeros(4))
        sgd = torch.optim.SGD([self.x], lr=1.0)
        options = settings | {"workers": workers, "rank": rank}
        self.optimizer = kind(
            sgd, box.client(f"w{rank}") if isinstance(box, ModelBox) else box, "run", **options
        )

    def step(self, gradient: float = -1.0) -> None:
        self.optimizer.zero_grad()
        (gradient * self.x).sum().backward()
        self.optimizer.step()


def center(box: ModelBox) -> list[float]:
    return box.attach("run.float32").get().tolist()


def contents(box: ModelBox) -> dict[str, list[float]]:
    """Values of the center, its average, its velocity and the server's state."""
    kept = {name: region.data for name, region in box.store.regions.items()}
    return {name: values.tolist() for name, values in kept.items() if ".float" in name}


def trained(steps: int, kind: type, box: ModelBox, settings: dict) -> Worker:
    one = Worker(kind, box, 0, 1, **settings)
    for _ in range(steps):
        one.step()
    return one


def saved_after(steps: int, kind: type, settings: dict) -> dict:
    box = ModelBox()
    one = trained(steps, kind, box, settings)
    assert center(box) == [0] * 4  # nothing is pushed yet
    return copy.deepcopy(one.optimizer.state_dict())


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("kind", PENDING)
def test_steps_before_a_checkpoint_count_once_however_many_workers_load_it(
    kind: str, workers: int
):
    saved = saved_after(3, *PENDING[kind])
    box = ModelBox()
    team = [
        Worker(PENDING[kind][0], box, i, workers, **PENDING[kind][1]) for i in range(workers)
    ]
    for one in team:
        one.optimizer.load_state_dict(copy.deepcopy(saved))
        assert one.x.tolist() == [3] * 4
        assert one.optimizer.steps == 3
    for one in team:
        one.step()  # the fourth of each: all push
    assert center(box) == [3 + workers] * 4


@pytest.mark.parametrize("kind", PENDING)
def test_steps_before_a_checkpoint_are_shared_at_the_end_too(kind: str):
    saved = saved_after(3, *PENDING[kind])
    box = ModelBox()
    team = [Worker(PENDING[kind][0], box, i, 2, **PENDING[kind][1]) for i in range(2)]
    for one in team:
        one.optimizer.load_state_dict(copy.deepcopy(saved))
    for one in reversed(team):
        one.optimizer.close()
    assert center(box) == [3] * 4


@pytest.mark.parametrize("kind", PENDING)
def test_a_forced_load_restores_the_center_and_the_steps_that_were_pending(kind: str):
    box = ModelBox()
    one = trained(3, PENDING[kind][0], box, PENDING[kind][1])
    saved = copy.deepcopy(one.optimizer.state_dict())
    one.step()
    assert center(box) == [4] * 4
    one.optimizer.load_state_dict(saved, force=True)
    assert center(box) == [0] * 4
    one.optimizer.close()
    assert center(box) == [3] * 4


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("end", ["close", "finish"])
@pytest.mark.parametrize("kind", SHARED)
def test_a_checkpoint_with_nothing_left_to_share_ends_as_it_was_saved(
    kind: str, end: str, workers: int, each
):
    make, settings = SHARED[kind]
    box = ModelBox()
    one = trained(3, make, box, settings)
    saved = copy.deepcopy(one.optimizer.state_dict())
    one.optimizer.close()
    again = ModelBox()
    team = [Worker(make, again, rank, workers, **settings) for rank in range(workers)]
    for other in team:
        other.optimizer.load_state_dict(copy.deepcopy(saved))
    each(team, lambda other: getattr(other.optimizer, end)())
    assert contents(again) == contents(box)


@pytest.mark.parametrize("end", ["close", "finish", "exchange"])
@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("make", [EASGD, EAMSGD])
def test_a_checkpoint_is_exchanged_without_a_step_as_the_saved_worker_would_have(
    make: type, overlap: bool, end: str
):
    box, again = ModelBox(), ModelBox()
    one, other = (Worker(make, each, 0, 1, overlap=overlap) for each in (box, again))
    for _ in range(3):
        one.step()
    other.optimizer.load_state_dict(copy.deepcopy(one.optimizer.state_dict()))
    for each in (one, other):
        getattr(each.optimizer, end)()
        each.optimizer.close()
    assert contents(again) == contents(box)
    assert other.x.tolist() == one.x.tolist()


@pytest.mark.parametrize("make", [EASGD, EAMSGD, SEASGD, SyncEASGD])
def test_only_the_saved_worker_exchanges_the_steps_that_were_left(make: type):
    settings = {"period": 4, "moving_rate": 0.25}
    box, again = ModelBox(), ModelBox()
    one = trained(3, make, box, settings)
    saved = copy.deepcopy(one.optimizer.state_dict())
    one.optimizer.close()
    team = [Worker(make, again, rank, 2, **settings) for rank in range(2)]
    for other in team:
        other.optimizer.load_state_dict(copy.deepcopy(saved))
    for other in reversed(team):
        other.optimizer.close()
    assert contents(again) == contents(box)


def test_a_successor_begins_at_the_steps_of_a_checkpoint_that_was_loaded(open_box, monkeypatch):
    monkeypatch.setenv("SMBOX_RANK", "0")
    monkeypatch.setenv("SMBOX_WORLD_SIZE", "1")
    monkeypatch.setenv("SMBOX_RUN_ID", "launch")
    kind, settings = SHARED["Downpour"]
    before = trained(3, kind, ModelBox(), settings)
    first = Worker(kind, open_box(), 0, 1, **settings)
    first.optimizer.load_state_dict(copy.deepcopy(before.optimizer.state_dict()))
    first.optimizer.close()
    assert Worker(kind, open_box(), 0, 1, **settings).optimizer.steps == 3


@pytest.mark.parametrize("kind", PENDING)
def test_each_worker_may_load_its_own_file_and_shares_its_own_steps(kind: str):
    def team(box: ModelBox) -> list[Worker]:
        return [Worker(PENDING[kind][0], box, i, 2, **PENDING[kind][1]) for i in range(2)]

    before, again = team(ModelBox()), ModelBox()
    for one, steps in zip(before, (3, 2), strict=True):
        for _ in range(steps):
            one.step()
    saved = [copy.deepcopy(one.optimizer.state_dict()) for one in before]
    after = team(again)
    for one, state in zip(after, saved, strict=True):
        one.optimizer.load_state_dict(state)
    for one in after:
        one.optimizer.close()
    assert center(again) == [5] * 4


@pytest.mark.parametrize("kind", PENDING)
def test_a_worker_that_goes_back_shares_no_step_twice(kind: str):
    """Its steps before the checkpoint came to the center since."""
    box = ModelBox()
    one = trained(3, PENDING[kind][0], box, PENDING[kind][1])
    saved = copy.deepcopy(one.optimizer.state_dict())
    for _ in range(2):
        one.step()
    assert center(box) == [4] * 4
    one.optimizer.load_state_dict(copy.deepcopy(saved))
    one.step(0.0)
    assert center(box) == [4] * 4


def test_a_worker_that_was_started_again_shares_no_step_twice(open_box, monkeypatch):
    monkeypatch.setenv("SMBOX_RANK", "0")
    monkeypatch.setenv("SMBOX_WORLD_SIZE", "1")
    monkeypatch.setenv("SMBOX_RUN_ID", "launch")
    kind, settings = PENDING["Downpour"]
    first = Worker(kind, open_box(), 0, 1, **settings)
    for _ in range(3):
        first.step()
    saved = copy.deepcopy(first.optimizer.state_dict())
    first.step()
    first.optimizer.close()
    box = open_box()
    second = Worker(kind, box, 0, 1, **settings)
    assert second.optimizer.steps == 4  # as the first has told
    second.optimizer.load_state_dict(saved)
    second.step(0.0)
    assert center(box) == [4] * 4


@pytest.mark.parametrize("restorer", [0, 1])
def test_what_streams_came_to_a_master_counts_once(restorer: int):
    def team(box: ModelBox) -> list[Worker]:
        return [Worker(Dogwild, box, i, 2, is_master=i == 0, pause_s=None) for i in range(2)]

    box = ModelBox()
    master, worker = team(box)
    master.step(0.0)
    worker.step()
    worker.optimizer.stream()
    master.optimizer.stream()  # the master holds the gradient and has not stepped with it
    saved = copy.deepcopy(master.optimizer.state_dict())
    box = ModelBox()
    pair = team(box)
    for one in (pair[restorer], pair[1 - restorer]):
        one.optimizer.load_state_dict(copy.deepcopy(saved))
    for _ in range(2):
        pair[1].optimizer.stream()
        pair[0].optimizer.stream()
        pair[0].step(0.0)
    np.testing.assert_array_equal(pair[0].x.detach(), torch.ones(4))


@pytest.mark.parametrize("kind", [EASGD, EAMSGD])
def test_a_move_that_was_pending_is_applied_without_overlap_too(kind: type):
    whole = Worker(kind, ModelBox(), 0, 1, period=3, overlap=True)
    for _ in range(3):
        whole.step()
    saved, before = copy.deepcopy(whole.optimizer.state_dict()), whole.x.tolist()
    whole.optimizer.close(exchange=False)  # subtracts the move
    assert whole.x.tolist() != before
    rest = Worker(kind, ModelBox(), 0, 1, period=3)
    rest.optimizer.load_state_dict(saved)
    rest.optimizer.close(exchange=False)
    assert rest.x.tolist() == pytest.approx(whole.x.tolist())

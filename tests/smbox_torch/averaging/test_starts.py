"""ParameterServer after a restart of all workers, or of one; a rank that is taken."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

import smbox
from smbox.errors import LeaseLostError, StepMismatchError, WorkerLostError
from smbox.testing.model_box import ModelBox
from smbox_torch import ParameterServer

torch.set_num_threads(1)


WAIT_S = 60.0


def worker(box, rank: int, workers: int, value: float = 1.0) -> ParameterServer:
    sgd = torch.optim.SGD([torch.nn.Parameter(torch.full((3,), value))], lr=0.1)
    settings = {"workers": workers, "timeout_s": WAIT_S, "lease_s": WAIT_S}
    return ParameterServer(sgd, box, "run", rank=rank, **settings)


def run(one: ParameterServer, steps: int) -> None:
    for _ in range(steps):
        one.zero_grad()
        one.param_groups[0]["params"][0].square().sum().backward()
        one.step()


def train(running: list[ParameterServer], steps: int) -> None:
    with ThreadPoolExecutor(len(running)) as pool:
        list(pool.map(run, running, [steps] * len(running)))


@pytest.mark.parametrize(
    ("launch", "restart", "steps"), [("one", "1", 2), ("none", "1", 2), ("two", "0", 0)]
)
def test_all_workers_begin_at_the_steps_of_the_center(
    monkeypatch: pytest.MonkeyPatch, launch: str, restart: str, steps: int
):
    """Whoever wrote the center. Another launch begins at 0."""
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none" if launch == "none" else "one")
    box = ModelBox()
    running = [worker(box, rank, 2) for rank in range(2)]
    train(running, 2)
    running[0].state_dict()  # writes the center
    train(running, 1)
    for one in running:
        one.close(exchange=False)
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", launch)
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", restart)
    again = [worker(box, rank, 2) for rank in range(2)]
    assert [one.steps for one in again] == [steps, steps]
    for one in again:
        one.close(exchange=False)


@pytest.mark.parametrize("kind", ["SMBOX_RESTART_COUNT", "SMBOX_WORKER_RESTART_COUNT"])
def test_a_restart_begins_with_what_the_script_loaded(monkeypatch, kind: str):
    """Without a saved state, the center has only the initial parameters."""
    for name, value in ("RANK", "0"), ("WORLD_SIZE", "2"), ("RUN_ID", "one"):
        monkeypatch.setenv(f"SMBOX_{name}", value)
    box = ModelBox()
    for value in (2.0, 3.0):  # the second restart loads another checkpoint
        running = [worker(box, rank, 2) for rank in range(2)]
        train(running, 1)
        for one in running:
            one.close(exchange=False)
        monkeypatch.setenv(kind, str(int(value)))
        again = [worker(box, rank, 2, value + rank) for rank in range(2)]
        for one in again:
            assert one.param_groups[0]["params"][0].tolist() == [value] * 3
            one.close(exchange=False)


def test_a_worker_that_was_restarted_before_any_step_joins_those_that_wait(monkeypatch):
    """Their number of restarts may stay different."""
    for name, value in ("RANK", "0"), ("WORLD_SIZE", "2"), ("RUN_ID", "one"):
        monkeypatch.setenv(f"SMBOX_{name}", value)
    box = ModelBox()
    for restart, value in enumerate((2.0, 3.0)):  # the second time both are restarted
        running = []
        for rank in range(2):
            monkeypatch.setenv("SMBOX_WORKER_RESTART_COUNT", str(restart + rank))
            running.append(worker(box, rank, 2, value + 5 * rank))
            assert running[rank].param_groups[0]["params"][0].tolist() == [value] * 3
        train(running, 1)
        for one in running:
            one.close(exchange=False)


def test_another_launch_does_not_count_who_came_to_an_earlier_one(monkeypatch):
    for name, value in ("RANK", "0"), ("WORLD_SIZE", "2"), ("TORCHELASTIC_RUN_ID", "one"):
        monkeypatch.setenv(name, value)
    box = ModelBox()
    for rank in (0, 1, 1):
        worker(box, rank, 2).close(exchange=False)
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "two")
    running = [worker(box, rank, 2) for rank in range(2)]
    train(running, 1)
    for one in running:
        one.close(exchange=False)


def test_infinities_of_a_rank_that_ran_out_of_batches_are_not_added():
    """Its sum of the last round has them, and zero times infinity is no number."""
    box = ModelBox()

    def work(rank: int) -> list[float]:
        one = worker(box, rank, 2)
        (x,) = one.param_groups[0]["params"]
        with one.join():
            for loss_scale in (float("inf"), 1.0)[: 1 + rank]:
                one.zero_grad()
                (x.sum() * loss_scale).backward()
                if x.grad.isfinite().all():
                    one.step()
        one.close(exchange=False)
        return x.tolist()

    with ThreadPoolExecutor(2) as pool:
        for found in pool.map(work, range(2)):
            assert found == pytest.approx([0.9] * 3)


def test_a_worker_that_is_started_again_alone_ends_each_of_the_others_once(monkeypatch):
    """It waits while the others notice it, leave and are started again, too."""
    for name, value in ("RANK", "0"), ("WORLD_SIZE", "3"), ("TORCHELASTIC_RUN_ID", "one"):
        monkeypatch.setenv(name, value)
    with smbox.local("64MiB") as box, ThreadPoolExecutor(3) as pool:
        before = [worker(box, rank, 3) for rank in range(3)]
        train(before, 2)
        before[1].close(exchange=False)
        again = worker(box, 1, 3)
        waits = pool.submit(run, again, 2)
        for one in (before[0], before[2]):
            began_s = time.monotonic()
            with pytest.raises(WorkerLostError, match="rank 1"), one:
                run(one, 1)
            assert time.monotonic() - began_s < WAIT_S / 2
        with pytest.raises(TimeoutError):
            waits.result(2.5)  # it has looked twice who is there
        others = [worker(box, rank, 3) for rank in (0, 2)]
        train(others, 2)
        waits.result(WAIT_S)
        values = [one.param_groups[0]["params"][0].tolist() for one in (again, *others)]
        assert values[0] == values[1] == values[2]
        for one in (again, *others):
            one.close(exchange=False)


def test_a_worker_whose_rank_another_has_taken_pushes_nothing():
    def taken() -> None:
        raise LeaseLostError("taken")

    box = ModelBox()
    one = worker(box, 0, 1)
    one.team.check = taken
    with pytest.raises(LeaseLostError):
        run(one, 1)
    assert box.order("run.gradient1.float32", "accumulate") == []
    one.close()


def test_a_worker_whose_member_left_first_tells_that_it_has_finished():
    with smbox.local("64MiB") as box:
        members = [smbox.join(box, "team", expected=2, rank=rank) for rank in range(2)]
        running = []
        for member in members:
            sgd = torch.optim.SGD([torch.nn.Parameter(torch.ones(3))], lr=0.1)
            running.append(ParameterServer(sgd, box, "run", workers=member, timeout_s=WAIT_S))
        train(running, 2)
        members[1].leave()
        running[1].close(exchange=False)
        with pytest.raises(StepMismatchError, match="rank 1 finished"), running[0]:
            run(running[0], 1)
        members[0].leave()

from __future__ import annotations

import copy
import threading
import time

import numpy as np
import pytest
import torch

import smbox
from smbox import heartbeat
from smbox.errors import (
    ConfigError,
    RequestTimeoutError,
    StepMismatchError,
    WorkerLostError,
)
from smbox.testing import oracles
from smbox.testing.model_box import ModelBox
from smbox.testing.quadratic import LR, Descent, noise, start
from smbox_torch.averaging.parameter_server import ParameterServer

torch.set_num_threads(1)

WAIT_S = 60.0


def worker(number: int, box: ModelBox, workers: int, **settings) -> Descent:
    x = torch.nn.Parameter(torch.from_numpy(start()))
    sgd = torch.optim.SGD([x], lr=LR)
    return Descent(
        number, x, ParameterServer(sgd, box, "run", rank=number, workers=workers, **settings)
    )


def together(workers: list[Descent], steps: int) -> None:
    threads = [threading.Thread(target=one.run, args=(steps,)) for one in workers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def replayed(workers: int, steps: int) -> np.ndarray:
    x = start()
    gradients = [lambda x, t, i=i: x - noise(i, t) for i in range(workers)]
    oracles.parameter_server(x, gradients, steps=steps, lr=LR)
    return x


def test_one_worker_is_the_sequential_algorithm():
    one = worker(0, ModelBox(), 1)
    one.run(7)
    np.testing.assert_array_equal(one.values(), replayed(1, 7))


def test_workers_stay_equal_and_step_with_the_mean():
    box = ModelBox()
    workers = [worker(i, box, 3) for i in range(3)]
    together(workers, 8)
    for one in workers:
        np.testing.assert_array_equal(one.values(), workers[0].values())
        np.testing.assert_allclose(one.values(), replayed(3, 8), rtol=0, atol=1e-6)
    for number, moves in ((0, 3), (1, 2)):  # rank 0 clears sums besides
        assert workers[number].optimizer.stats().nbytes == 8 * moves * 4 * len(start())


def test_a_new_run_on_old_memory_begins_with_cleared_sums():
    box = ModelBox()
    together([worker(i, box, 2) for i in range(2)], 4)
    for turn in range(3):
        box.attach(f"run.gradient{turn}.float32").put(np.full(len(start()), 9, np.float32))
    again = [worker(i, box, 2) for i in range(2)]
    together(again, 5)
    np.testing.assert_allclose(again[0].values(), replayed(2, 5), rtol=0, atol=1e-6)


def test_a_run_that_goes_back_to_a_checkpoint_repeats_its_steps_exactly():
    box = ModelBox()
    workers = [worker(i, box, 2) for i in range(2)]
    together(workers, 3)
    saved = [copy.deepcopy(one.optimizer.state_dict()) for one in workers]
    times = [one.t for one in workers]
    together(workers, 2)
    expected = workers[0].values().copy()
    for one, state, t in zip(workers, saved, times, strict=True):
        one.optimizer.load_state_dict(state, force=True)
        one.t = t
    together(workers, 2)
    np.testing.assert_array_equal(workers[0].values(), expected)


def evaluated(one: Descent) -> np.ndarray:
    model = torch.nn.Module()
    model.x = torch.nn.Parameter(torch.zeros(len(start())))
    one.optimizer.center_into(model)
    return model.x.detach().numpy()


def test_the_common_parameters_are_what_is_evaluated():
    one = worker(0, ModelBox(), 1)
    one.run(2)
    np.testing.assert_array_equal(evaluated(one), one.values())


def test_a_run_that_goes_back_evaluates_the_parameters_of_the_checkpoint():
    one = worker(0, ModelBox(), 1)
    one.run(2)
    saved = copy.deepcopy(one.optimizer.state_dict())
    one.run(2)
    evaluated(one)
    one.optimizer.load_state_dict(saved)
    np.testing.assert_array_equal(evaluated(one), one.values())


def test_a_frozen_parameter_is_not_decayed():
    p, q = (torch.nn.Parameter(torch.ones(2)) for _ in range(2))
    p.requires_grad_(False)
    sgd = torch.optim.SGD([p, q], lr=0.5, weight_decay=0.5)
    opt = ParameterServer(sgd, ModelBox(), "run", rank=0, workers=1)
    for _ in range(2):
        opt.zero_grad()
        q.sum().backward()
        opt.step()
    assert p.tolist() == [1, 1]
    assert q.tolist() == [-0.3125, -0.3125]


def test_a_worker_that_is_missing_times_out_the_others():
    one = worker(0, ModelBox(), 2, timeout_s=0.01)
    with pytest.raises(RequestTimeoutError):
        one.run()
    np.testing.assert_array_equal(one.values(), start())


def test_a_worker_that_finished_earlier_is_named_when_the_others_time_out(monkeypatch):
    box = ModelBox()
    workers = [worker(i, box, 2, timeout_s=20.0) for i in range(2)]
    together(workers, 2)
    monkeypatch.setattr("smbox_torch.averaging.box_sum.left_s", lambda _: 0.05)
    with pytest.raises(RequestTimeoutError, match=r"rank \[1\] did not come .* after 2 steps"):
        workers[0].run()


@pytest.mark.parametrize("end", ["died", "left", "close", "finish"])
def test_a_worker_that_is_gone_is_named_at_once(end: str):
    with smbox.local("64MiB") as node:
        lease_s = 2.0 if end == "died" else WAIT_S
        workers = [worker(i, node, 2, timeout_s=WAIT_S, lease_s=lease_s) for i in range(2)]
        together(workers, 2)
        one, gone = (each.optimizer for each in workers)
        if end == "died":
            heartbeat.drop(gone.member)
        elif end == "left":
            with pytest.raises(KeyError), gone:
                raise KeyError("of the loop")
        elif end == "close":
            gone.close()
        else:
            with pytest.raises(RequestTimeoutError):
                gone.finish(timeout_s=0.1)
        began_s = time.monotonic()
        is_lost = end in {"died", "left"}
        error, match = (
            (WorkerLostError, f"rank 1 {end}")
            if is_lost
            else (StepMismatchError, "rank 1 finished after 2 steps")
        )
        with pytest.raises(error, match=match):
            workers[0].run()
        assert time.monotonic() - began_s < WAIT_S / 2
        one.close(exchange=False)
        gone.close(exchange=False)


@pytest.mark.parametrize("end", ["died", "left"])
def test_who_leaves_because_of_another_is_not_named_in_its_place(end: str):
    with smbox.local("64MiB") as node:
        lease_s = 2.0 if end == "died" else WAIT_S
        workers = [worker(i, node, 3, timeout_s=WAIT_S, lease_s=lease_s) for i in range(3)]
        together(workers, 2)
        gone = workers[2].optimizer
        if end == "died":
            heartbeat.drop(gone.member)
        else:
            with pytest.raises(KeyError), gone:
                raise KeyError("of the loop")
        for one in workers[:2]:  # the second one comes when the first has left
            with pytest.raises(WorkerLostError) as caught, one.optimizer:
                one.run()
            assert caught.value.facts["rank"] == 2
        gone.close(exchange=False)


@pytest.fixture
def launched(monkeypatch):
    for name, value in (("RANK", "0"), ("WORLD_SIZE", "2"), ("TORCHELASTIC_RUN_ID", "test")):
        monkeypatch.setenv(name, value)


@pytest.mark.usefixtures("launched")
def test_a_worker_that_left_before_another_came_is_named_at_once():
    with smbox.local("64MiB") as node:
        settings = {"timeout_s": WAIT_S, "lease_s": WAIT_S}
        worker(0, node, 2, **settings).optimizer.close(exchange=False)
        one = worker(1, node, 2, **settings)
        began_s = time.monotonic()
        with pytest.raises(WorkerLostError, match="rank 0 left"), one.optimizer:
            one.run()
        assert time.monotonic() - began_s < WAIT_S / 2


@pytest.mark.parametrize("is_launched", [False, True])
def test_a_run_on_the_memory_of_one_that_finished_waits_for_its_workers(is_launched, request):
    if is_launched:
        request.getfixturevalue("launched")
    with smbox.local("64MiB") as node:
        for _ in range(2):
            settings = {"timeout_s": WAIT_S, "lease_s": WAIT_S}
            first = worker(0, node, 2, **settings)
            before = first.optimizer.steps  # 2 in the second run of a launch
            threads = [threading.Thread(target=first.run, args=(2,))]
            threads[0].start()
            threads[0].join(1.5)  # it has looked who is there, and waits on
            assert threads[0].is_alive()
            second = worker(1, node, 2, **settings)
            threads.append(threading.Thread(target=second.run, args=(2,)))
            threads[1].start()
            for thread in threads:
                thread.join(WAIT_S)
            np.testing.assert_array_equal(first.values(), second.values())
            assert first.optimizer.steps == second.optimizer.steps == before + 2
            for one in (first, second):
                one.optimizer.close()


@pytest.mark.parametrize("keep", ["finish", "close", "state_dict"])
def test_the_center_is_the_parameters_when_the_run_ends_or_is_saved(keep: str):
    box = ModelBox()
    one = worker(0, box, 1)
    one.run(5)
    state = getattr(one.optimizer, keep)()
    np.testing.assert_array_equal(box.attach("run.float32").get(), one.values())
    if state is not None:
        np.testing.assert_array_equal(state["centers"][0]["float32"].numpy(), one.values())
    again = worker(0, box, 1)
    np.testing.assert_array_equal(again.values(), one.values())


def test_after_an_error_the_center_stays():
    box = ModelBox()
    one = worker(0, box, 1)
    one.run(5)
    with pytest.raises(KeyError), one.optimizer:
        raise KeyError("of the loop")
    np.testing.assert_array_equal(box.attach("run.float32").get(), start())


def test_a_wire_is_refused():
    box = ModelBox()
    with pytest.raises(ConfigError, match="leave out wire="):
        worker(0, box, 1, wire="bfloat16")
    assert box.regions() == []


def test_buffers_and_counts_of_all_workers_are_those_of_the_first():
    box = ModelBox()

    def made(number: int) -> tuple[torch.nn.Module, ParameterServer]:
        net = torch.nn.Sequential(torch.nn.BatchNorm1d(3), torch.nn.Linear(3, 1))
        sgd = torch.optim.SGD(net.parameters(), lr=0.1)
        return net, ParameterServer(sgd, box, "run", rank=number, workers=2, model=net)

    def train(number: int) -> None:
        net, optimizer = pairs[number]
        for step in range(2):
            optimizer.zero_grad()
            net(torch.full((2, 3), 1.0 + step + number) * torch.eye(2, 3)).sum().backward()
            optimizer.step()

    pairs = [made(number) for number in range(2)]
    threads = [threading.Thread(target=train, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    first, second = ({n: b.tolist() for n, b in net.named_buffers()} for net, _ in pairs)
    assert first == second
    assert first["0.num_batches_tracked"] == 2
    assert first["0.running_mean"][0] > 0.0

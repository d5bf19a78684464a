from __future__ import annotations

import copy
import threading

import numpy as np
import pytest
import torch

from smbox.errors import RequestTimeoutError
from smbox.testing import oracles
from smbox.testing.model_box import ModelBox
from smbox.testing.quadratic import LR, Descent, noise, start
from smbox_torch.averaging.parameter_server import ParameterServer

torch.set_num_threads(1)


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


def test_the_common_parameters_are_what_is_evaluated():
    one = worker(0, ModelBox(), 1)
    one.run(2)
    model = torch.nn.Module()
    model.x = torch.nn.Parameter(torch.zeros(len(start())))
    one.optimizer.center_into(model)
    np.testing.assert_array_equal(model.x.detach().numpy(), one.values())


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


def test_a_worker_that_finished_earlier_is_named_when_the_others_time_out():
    box = ModelBox()
    workers = [worker(i, box, 2, timeout_s=20.0) for i in range(2)]
    together(workers, 2)
    workers[0].optimizer._sums._timeout_s = 0.05
    with pytest.raises(RequestTimeoutError, match=r"rank \[1\] did not come .* after 2 steps"):
        workers[0].run()


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

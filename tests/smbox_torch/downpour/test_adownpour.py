"""Downpour with an average of the center: of all pushes, and a moving one."""

from __future__ import annotations

import copy
from collections.abc import Callable

import numpy as np
import pytest
import torch

from smbox.errors import ConfigError
from smbox.testing import oracles
from smbox.testing.model_box import ModelBox
from smbox.testing.quadratic import LR, Descent, gradient, start
from smbox_torch.downpour.adownpour import ADownpour
from smbox_torch.downpour.mvadownpour import MVADownpour

torch.set_num_threads(1)


def worker(number: int, box: ModelBox, kind: type = ADownpour, **settings) -> Descent:
    x = torch.nn.Parameter(torch.from_numpy(start()))
    sgd, client = torch.optim.SGD([x], lr=LR), box.client(f"w{number}")
    return Descent(number, x, kind(sgd, client, "run", **({"workers": 1} | settings)))


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize(
    ("kind", "settings", "rate"),
    [
        (ADownpour, {}, lambda push: 1 / (push + 1)),
        (MVADownpour, {"rate": 0.25}, lambda _: 0.25),
    ],
)
def test_workers_equal_the_replay_of_their_order(
    kind: type, settings: dict[str, float], rate: Callable[[int], float], count: int
):
    """The rate is the weight of the center after so many pushes."""
    box = ModelBox()
    workers = [worker(i, box, kind, **settings) for i in range(count)]
    turns = np.random.default_rng(5).permutation(np.repeat(np.arange(count), 8))
    for turn in turns:
        workers[turn].run()
    xs, c, z, clock = [start() for _ in workers], start(), start(), [0]
    runs = {
        f"w{i}": oracles.adownpour(x, c, z, gradient(i), steps=8, lr=LR, rate=rate, clock=clock)
        for i, x in enumerate(xs)
    }
    oracles.replay(runs, box.order("run.float32", "accumulate"))
    compare = np.testing.assert_array_equal if count == 1 else close
    compare(box.attach("run.float32").get(), c)
    compare(box.attach("run.average.float32").get(), z)
    for one, x in zip(workers, xs, strict=True):
        compare(one.values(), x)


def close(found: np.ndarray, expected: np.ndarray) -> None:
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)


def test_the_average_is_the_mean_of_all_centers():
    box = ModelBox()
    one = worker(0, box)
    centers = [start()]
    for _ in range(4):
        one.run()
        centers.append(box.attach("run.float32").get())
    close(box.attach("run.average.float32").get(), np.mean(centers, axis=0))


def test_a_run_resumes_exactly_in_new_memory():
    box, again = ModelBox(), ModelBox()
    whole = worker(0, box)
    whole.run(4)
    saved = whole.optimizer.state_dict()
    whole.run(4)
    rest = worker(0, again)
    rest.optimizer.load_state_dict(saved)
    rest.t = 4
    rest.run(4)
    for name in ("run.float32", "run.average.float32"):
        np.testing.assert_array_equal(again.attach(name).get(), box.attach(name).get())


def test_going_back_to_a_checkpoint_takes_its_count_of_pushes():
    box = ModelBox()
    one = worker(0, box)
    one.run(3)
    saved = copy.deepcopy(one.optimizer.state_dict())
    one.run(2)
    one.optimizer.load_state_dict(saved)
    assert box.counter("run.pushes").value == 5  # the memory is in use
    one.optimizer.load_state_dict(saved, force=True)
    assert box.counter("run.pushes").value == 3


def test_bytes_of_the_average_count():
    one = worker(0, ModelBox())
    one.run(4)
    assert one.optimizer.stats().nbytes == 4 * 4 * start().nbytes


def test_the_default_rate_of_the_moving_average_is_the_papers():
    assert worker(0, ModelBox(), MVADownpour).optimizer.rate() == 0.001


def test_a_rate_outside_its_range_is_refused():
    for wrong in (0.0, 1.5):
        with pytest.raises(ConfigError):
            worker(0, ModelBox(), MVADownpour, rate=wrong)

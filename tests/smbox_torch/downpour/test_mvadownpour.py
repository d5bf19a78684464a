from __future__ import annotations

import numpy as np
import pytest
import torch

from smbox.errors import ConfigError
from smbox.testing import oracles
from smbox.testing.model_box import ModelBox
from smbox.testing.quadratic import LR, Descent, gradient, start
from smbox_torch.downpour.mvadownpour import MVADownpour

torch.set_num_threads(1)


def worker(number: int, box: ModelBox, **settings) -> Descent:
    x = torch.nn.Parameter(torch.from_numpy(start()))
    sgd = torch.optim.SGD([x], lr=LR)
    return Descent(
        number,
        x,
        MVADownpour(sgd, box.client(f"w{number}"), "run", **({"workers": 1} | settings)),
    )


def rate(push: int) -> float:
    """Weight of the center after so many pushes."""
    return 0.25


@pytest.mark.parametrize("count", [1, 3])
def test_workers_equal_the_replay_of_their_order(count: int):
    box = ModelBox()
    workers = [worker(i, box, rate=0.25) for i in range(count)]
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


def test_the_default_is_the_papers():
    assert worker(0, ModelBox()).optimizer.rate() == 0.001


def test_a_rate_outside_its_range_is_refused():
    for wrong in (0.0, 1.5):
        with pytest.raises(ConfigError):
            worker(0, ModelBox(), rate=wrong)

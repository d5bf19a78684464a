from __future__ import annotations

import pytest
import torch

from smbox.errors import ConfigError
from smbox.testing.model_box import ModelBox
from smbox_torch.elastic.easgd import EASGD
from smbox_torch.optimizer.scalars import Scalars, since
from smbox_torch.optimizer.stats import Stats


class Log:
    """A writer that remembers."""

    def __init__(self) -> None:
        self.points: dict[str, list[tuple[int, float]]] = {}

    def add_scalar(self, tag: str, scalar_value: float, global_step: int) -> None:
        self.points.setdefault(tag, []).append((global_step, scalar_value))


def counts(steps: int, exchanges: int, staleness: dict[int, int], nbytes: int) -> Stats:
    return Stats(steps, exchanges, staleness, 4.0 * exchanges, 1.0 * exchanges, nbytes)


def made(box: ModelBox, client: str) -> tuple[torch.nn.Parameter, EASGD]:
    x = torch.nn.Parameter(torch.zeros(3))
    return x, EASGD(
        torch.optim.SGD([x], lr=0.1), box.client(client), "run", period=1, workers=1
    )


def train(x: torch.nn.Parameter, optimizer: EASGD, steps: int) -> None:
    for _ in range(steps):
        optimizer.zero_grad()
        x.sum().backward()
        optimizer.step()


def test_points_are_of_the_steps_since_the_last_ones():
    points = since(counts(10, 2, {0: 1, 3: 1}, 80), counts(14, 4, {0: 1, 3: 2, 5: 1}, 160))
    assert points == {
        "exchange_ms": 2.0,
        "waited_ms": 0.5,
        "nbytes": 20.0,
        "hidden_share": 0.75,
        "staleness": 4.0,
    }


def test_without_an_exchange_there_is_nothing_to_say_of_hiding_and_staleness():
    before = counts(1, 1, {2: 1}, 8)
    points = since(before, counts(3, 1, {2: 1}, 8))
    assert points == {"exchange_ms": 0.0, "waited_ms": 0.0, "nbytes": 0.0}


def test_training_writes_points_on_the_axis_of_steps():
    box, log = ModelBox(), Log()
    x, optimizer = made(box, "a")
    y, other = made(box, "b")
    train(x, optimizer, 1)
    scalars = Scalars(optimizer, log, period=2, prefix="run")
    for _ in range(5):
        train(y, other, 3)
        train(x, optimizer, 1)
    assert [step for step, _ in log.points["run/nbytes"]] == [3, 5]
    assert log.points["run/staleness"] == [(3, 3.0), (5, 3.0)]
    assert log.points["run/nbytes"][0][1] == 2 * 12
    assert all(value > 0 for _, value in log.points["run/exchange_ms"])
    scalars.close()
    assert [step for step, _ in log.points["run/waited_ms"]] == [3, 5, 6]
    train(x, optimizer, 4)
    scalars.write()
    scalars.write()
    assert [step for step, _ in log.points["run/waited_ms"]] == [3, 5, 6, 10]


def test_a_period_below_one_is_refused():
    with pytest.raises(ConfigError, match="period"):
        Scalars(made(ModelBox(), "a")[1], Log(), period=0)

from __future__ import annotations

import pytest

from smbox.errors import ConfigError
from smbox.testing.model_box import ModelBox
from smbox_torch.stopping import Stopping


def team(rule: str, iterations: int, workers: int = 2, **settings) -> list[Stopping]:
    box = ModelBox()
    return [
        Stopping(box, "run", rule, iterations, rank=rank, workers=workers, **settings)
        for rank in range(workers)
    ]


def test_all_stop_when_the_master_has_done_its_iterations():
    master, other = team("master", 2)
    assert [other.step() for _ in range(5)] == [False] * 5
    assert [master.step(), master.step()] == [False, True]
    assert other.step()


def test_all_stop_when_the_fastest_has():
    one, other = team("fastest", 3)
    assert not one.step()
    assert [other.step() for _ in range(3)] == [False, False, True]
    assert one.step()
    assert one.iterations == 2


def test_all_stop_when_the_mean_has():
    one, other = team("mean", 3)
    assert [one.step() for _ in range(5)] == [False] * 5
    assert other.step()
    assert one.step()


def test_fewer_looks_find_the_same_end_later():
    one, other = team("mean", 4, every=4)
    assert [one.step() for _ in range(4)] == [False] * 4
    assert [other.step() for _ in range(4)] == [False, False, False, True]
    assert [one.step() for _ in range(4)] == [False, False, False, True]


def test_impossible_settings_are_refused():
    for wrong in ({"rule": "never", "iterations": 1}, {"rule": "mean", "iterations": 0}):
        with pytest.raises(ConfigError):
            team(**wrong)

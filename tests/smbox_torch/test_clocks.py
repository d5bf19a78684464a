from __future__ import annotations

import threading

import pytest

from smbox.errors import ConfigError, RequestTimeoutError
from smbox.testing.model_box import ModelBox
from smbox_torch.clocks import Clocks


def test_a_wait_ends_when_the_slowest_is_there():
    box = ModelBox()
    fast, slow = (Clocks(box, "clocks", rank, 2) for rank in range(2))
    assert fast.tick() == 1
    waiter = threading.Thread(target=fast.wait, args=(2, 30.0))
    waiter.start()
    fast.tick()
    slow.tick()
    slow.tick()
    waiter.join()
    assert fast.read().tolist() == [2, 2]


def test_a_timeout_names_the_slowest():
    box = ModelBox()
    Clocks(box, "clocks", 0, 3).tick()
    Clocks(box, "clocks", 2, 3).tick()
    with pytest.raises(RequestTimeoutError) as caught:
        Clocks(box, "clocks", 0, 3).wait(1, 0.01)
    assert caught.value.facts["rank"] == 1


def test_who_left_is_not_waited_for_and_returns_beside_the_slowest():
    box = ModelBox()
    clocks = [Clocks(box, "clocks", rank, 2) for rank in range(2)]
    clocks[1].leave()
    for _ in range(4):
        clocks[0].tick()
    assert clocks[0].wait(4, 1.0) == 4
    assert Clocks(box, "clocks", 1, 2).mine == 4


def test_a_restarted_worker_goes_on_with_its_clock():
    box = ModelBox()
    Clocks(box, "clocks", 0, 1).tick()
    assert Clocks(box, "clocks", 0, 1).mine == 1


def test_a_rank_outside_is_refused():
    with pytest.raises(ConfigError):
        Clocks(ModelBox(), "clocks", 2, 2)


def test_who_left_does_not_tick():
    clocks = Clocks(ModelBox(), "clocks", 0, 1)
    clocks.leave()
    with pytest.raises(ConfigError, match="has left"):
        clocks.tick()

from __future__ import annotations

import os
import threading
import time
from typing import ClassVar

import numpy as np
import pytest
from numpy.typing import NDArray

from smbox.errors import ConfigError, RequestTimeoutError
from smbox.testing.model_box import ModelBox
from smbox_torch.workers.clocks import Clocks
from smbox_torch.workers.team import FixedTeam


def clocks_of(box: ModelBox, rank: int, workers: int) -> Clocks:
    return Clocks(box, "clocks", FixedTeam(box, "run", rank, workers))


def test_a_wait_ends_when_the_slowest_is_there():
    box = ModelBox()
    fast, slow = (clocks_of(box, rank, 2) for rank in range(2))
    assert fast.tick() == 1
    waiter = threading.Thread(target=fast.wait, args=(2, 30.0))
    waiter.start()
    fast.tick()
    slow.tick()
    slow.tick()
    waiter.join()
    assert fast.present() == {0: 2, 1: 2}


def test_a_tick_after_the_look_at_the_clocks_ends_the_wait():
    box = ModelBox()
    slow = clocks_of(box, 1, 2)

    class Ticking(Clocks):
        looks = 0

        def read(self) -> NDArray[np.int64]:
            found = super().read()
            self.looks += 1
            if self.looks == 1:
                slow.tick()
            return found

    fast = Ticking(box, "clocks", FixedTeam(box, "run", 0, 2))
    fast.tick()
    fast.looks = 0
    begun_s = time.monotonic()
    assert fast.wait(1, 60.0) == 1
    assert time.monotonic() - begun_s < 30.0


def test_a_timeout_names_the_slowest():
    box = ModelBox()
    clocks_of(box, 0, 3).tick()
    clocks_of(box, 2, 3).tick()
    with pytest.raises(RequestTimeoutError) as caught:
        clocks_of(box, 0, 3).wait(1, 0.01)
    assert caught.value.facts["rank"] == 1


def test_who_left_is_not_waited_for_and_returns_beside_the_slowest():
    box = ModelBox()
    clocks = [clocks_of(box, rank, 2) for rank in range(2)]
    clocks[1].leave()
    for _ in range(4):
        clocks[0].tick()
    assert clocks[0].wait(4, 1.0) == 4
    assert clocks_of(box, 1, 2).mine == 4


def test_who_leaves_twice_has_left():
    clocks = [clocks_of(box, rank, 2) for box in [ModelBox()] for rank in range(2)]
    for _ in range(2):
        clocks[1].leave()
    assert clocks[0].present() == {0: 0}


@pytest.mark.parametrize(("own", "wanted"), [(0, 4), (6, 6)])
def test_who_comes_late_begins_no_earlier_than_the_slowest(own: int, wanted: int):
    box = ModelBox()
    for rank, ticks in enumerate([4, own]):
        clocks = clocks_of(box, rank, 2)
        for _ in range(ticks):
            clocks.tick()
    team = FixedTeam(box, "run", 1, 2)
    team.is_late = True
    assert Clocks(box, "clocks", team).mine == wanted


def test_a_restarted_worker_goes_on_with_its_clock():
    box = ModelBox()
    clocks_of(box, 0, 1).tick()
    assert clocks_of(box, 0, 1).mine == 1


def test_who_left_does_not_tick():
    clocks = clocks_of(ModelBox(), 0, 1)
    clocks.leave()
    with pytest.raises(ConfigError, match="has left"):
        clocks.tick()


def test_a_forked_child_does_not_leave_for_its_parent(monkeypatch):
    box = ModelBox()
    clocks = clocks_of(box, 0, 1)
    with monkeypatch.context() as child:
        child.setattr(os, "getpid", lambda: -1)
        clocks.leave()
    assert clocks.mine == 0


class Starters(FixedTeam):
    """Two workers; the others wait for each from the start on."""

    is_first = is_late = True
    absent: ClassVar[list[int]] = []

    def never_came(self) -> list[int]:
        return self.absent


def test_an_expected_worker_begins_at_0_however_late_it_comes():
    box = ModelBox()
    first = Clocks(box, "clocks", Starters(box, "run", 0, 2))
    for _ in range(3):
        first.tick()
    assert Clocks(box, "clocks", Starters(box, "run", 1, 2)).mine == 0
    assert first.slowest() == 0


def test_clocks_of_an_earlier_launch_do_not_count():
    box = ModelBox()
    for rank in range(2):
        clocks_of(box, rank, 2).leave()
    team = Starters(box, "run", 0, 2)
    team.absent = [1]
    clocks = Clocks(box, "clocks", team)
    clocks.tick()
    assert clocks.present() == {0: 1, 1: 0}
    with pytest.raises(RequestTimeoutError):
        clocks.wait(1, 0.01)


@pytest.mark.parametrize("steps", [0, 1])
@pytest.mark.parametrize("has_left", [False, True])
def test_a_start_continues_its_clock_if_it_continues_its_steps(*, has_left: bool, steps: int):
    box = ModelBox()
    before = clocks_of(box, 0, 2)
    before.tick()
    if has_left:
        before.leave()
        before.leave()
    team = Starters(box, "run", 0, 2)
    team.begins_at = steps
    assert Clocks(box, "clocks", team).mine == steps


def test_a_clock_of_an_earlier_launch_is_not_that_of_a_worker_that_just_joins():
    box = ModelBox()
    earlier = clocks_of(box, 1, 2)
    earlier.tick()
    team = Starters(box, "run", 0, 2)
    team.absent = [1]

    class Looking(Clocks):
        def read(self) -> NDArray[np.int64]:
            found = super().read()
            team.absent = []
            return found

    assert Looking(box, "clocks", team).present() == {0: 0, 1: 0}

from __future__ import annotations

import gc
import time

import numpy as np
import pytest

import smbox
from smbox import heartbeat
from smbox.errors import ConfigError
from smbox.testing.model_box import ModelBox
from smbox_torch.workers.stopping import Stopping


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


def test_the_target_is_met_between_two_looks():
    (alone,) = team("fastest", 3, workers=1, every=2)
    assert [alone.step() for _ in range(3)] == [False, False, True]


def test_a_successor_continues_the_count(monkeypatch):
    for key, value in {"RANK": "0", "WORLD_SIZE": "1", "TORCHELASTIC_RUN_ID": "one"}.items():
        monkeypatch.setenv(key, value)
    with smbox.local("64MiB") as box:
        for steps in ([False], [False, True]):
            alone = Stopping(box, "run", "fastest", 3)
            assert [alone.step() for _ in steps] == steps
            alone.close()


def test_impossible_settings_are_refused():
    for wrong in ({"rule": "never", "iterations": 1}, {"rule": "mean", "iterations": 0}):
        with pytest.raises(ConfigError):
            team(**wrong)


@pytest.fixture
def members():
    """Three workers that are members of a run, the first two alive to the end."""
    with smbox.local("64MiB") as box:
        yield box, [smbox.join(box, "run", lease_s=0.5) for _ in range(3)]


def until_stops(*workers: Stopping) -> list[int]:
    """Let workers take turns until one stops; the iterations that they did."""
    for _ in range(200):
        stops = [worker.step() for worker in workers]
        if any(stops):
            return [worker.iterations for worker in workers]
    raise AssertionError("nobody stops")


def lose(members, lost) -> None:
    heartbeat.drop(lost)
    deadline_s = time.monotonic() + 60.0
    while members[0 if lost is not members[0] else 1].count == 3:
        assert time.monotonic() < deadline_s
        time.sleep(0.02)


def test_the_mean_is_over_those_who_are_there(members):
    box, joined = members
    one, two, three = (Stopping(box, "run", "mean", 10, workers=each) for each in joined)
    assert not three.step()
    assert not any(one.step() for _ in range(6))
    lose(joined, joined[2])
    assert until_stops(one, two) == [13, 7]
    assert one.step()


def test_another_worker_is_master_when_the_master_died(members):
    box, joined = members
    master, one, two = (Stopping(box, "run", "master", 4, workers=each) for each in joined)
    assert not master.step()
    assert not any(two.step() for _ in range(9))
    lose(joined, joined[0])
    assert until_stops(one, two) == [4, 13]


def test_what_one_decides_holds_when_it_has_left(members):
    box, joined = members
    one, two, three = (Stopping(box, "run", "fastest", 3, workers=each) for each in joined)
    assert [one.step() for _ in range(3)] == [False, False, True]
    joined[0].leave()
    assert two.step()
    assert three.step()


@pytest.mark.parametrize("closes", [False, True])
def test_a_number_of_workers_joins_by_itself(*, closes: bool):
    with smbox.local("64MiB") as box:
        one, two = (Stopping(box, "run", "mean", 4, workers=2, lease_s=60.0) for _ in range(2))
        assert not any(one.step() for _ in range(5))
        if closes:
            two.close()
        del two
        gc.collect()
        assert one.step()


def test_a_later_launch_does_not_end_with_an_earlier_one(monkeypatch):
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "1")
    with smbox.local("64MiB") as box:
        for launch in ("first", "second"):
            monkeypatch.setenv("TORCHELASTIC_RUN_ID", launch)
            alone = Stopping(box, "run", "mean", 3)
            assert [alone.step() for _ in range(3)] == [False, False, True]
            alone.close()


def test_counts_of_an_earlier_launch_do_not_end_the_run(members):
    box, joined = members
    one = Stopping(box, "run", "master", 10, workers=joined[1])
    box.attach("run.stop.iterations")[:1].put(np.array([10]))  # rank 0 has just joined
    assert not one.step()
    Stopping(box, "run", "master", 10, workers=joined[0]).step()
    assert not one.step()

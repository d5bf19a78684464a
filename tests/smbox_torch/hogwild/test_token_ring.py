from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from smbox.errors import ConfigError, SystemLimitError
from smbox.memory import process
from smbox_torch.hogwild.token_ring import POLL_S, TokenRing, ring_words


class Ring:
    """Leaders of one ring, whose time is ours."""

    def __init__(self, clusters: int) -> None:
        self.now_s = 0.0
        self.words = np.zeros(ring_words(clusters), np.int64)
        self.clusters = clusters
        self.leaders: dict[int, TokenRing] = {}

    def enter(self, *clusters: int) -> None:
        for cluster in clusters:
            self.leaders[cluster] = TokenRing(
                self.words, cluster, self.clusters, clock=lambda: self.now_s
            )

    def holders(self) -> list[int]:
        return [number for number, each in self.leaders.items() if each.has_token()]


def test_the_token_goes_around():
    ring = Ring(3)
    ring.enter(0, 1, 2)
    seen = []
    for _ in range(7):
        (holder,) = ring.holders()
        seen.append(holder)
        ring.leaders[holder].pass_on()
    assert seen == [0, 1, 2, 0, 1, 2, 0]


def test_a_cluster_that_has_not_come_is_waited_for():
    ring = Ring(3)
    ring.enter(0, 2)
    ring.leaders[0].pass_on()
    ring.now_s += 10 * POLL_S
    assert ring.holders() == []
    ring.enter(1)
    assert ring.holders() == [1]


def test_a_cluster_that_left_is_passed_over_and_takes_no_token_along():
    ring = Ring(4)
    ring.enter(0, 1, 2, 3)
    ring.leaders.pop(1).leave()
    ring.leaders.pop(0).leave()  # with the token
    assert ring.holders() == [2]
    ring.leaders[2].pass_on()
    assert ring.holders() == [3]
    ring.leaders[3].pass_on()
    assert ring.holders() == [2]


def test_the_last_one_keeps_the_token():
    ring = Ring(2)
    ring.enter(0, 1)
    ring.leaders.pop(0).leave()
    for _ in range(3):
        assert ring.holders() == [1]
        ring.leaders[1].pass_on()


def test_a_dead_leader_is_noticed_after_a_while_and_may_come_back():
    ring = Ring(2)
    ring.enter(0, 1)
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    ring.words[1:3] = child.pid, process.start_time(child.pid)
    del ring.leaders[0]
    ring.now_s += 2 * POLL_S
    assert ring.holders() == []  # it lives
    child.kill()
    child.communicate()
    assert ring.holders() == []  # nobody looks again so soon
    ring.now_s += 2 * POLL_S
    assert ring.holders() == [1]
    ring.enter(0)
    ring.leaders[1].pass_on()
    assert ring.holders() == [0]


def test_a_leader_of_whom_nothing_can_be_known_keeps_the_token(monkeypatch):
    ring = Ring(2)
    ring.enter(0, 1)
    del ring.leaders[0]

    def refuse(*_):
        raise SystemLimitError("too many open files")

    monkeypatch.setattr(process, "is_alive", refuse)
    ring.now_s += 2 * POLL_S
    assert ring.holders() == []
    monkeypatch.setattr(process, "is_alive", lambda *_: False)
    ring.now_s += 2 * POLL_S
    assert ring.holders() == [1]


def test_a_leader_that_was_replaced_takes_no_token_and_leaves_its_successor_in_the_ring():
    ring = Ring(2)
    ring.enter(0, 1)
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        ring.words[1:3] = child.pid, process.start_time(child.pid)
        ring.now_s += 2 * POLL_S
        assert ring.holders() == []
        ring.leaders[0].leave()
        assert ring.holders() == []
        child.kill()


def test_a_number_that_is_no_cluster_is_refused():
    with pytest.raises(ConfigError, match="numbered"):
        TokenRing(np.zeros(ring_words(2), np.int64), 2, 2)


def test_a_cluster_that_left_passes_its_token_to_the_next_one_and_no_other():
    ring = Ring(3)
    ring.enter(0, 1, 2)
    ring.leaders.pop(0).leave()
    assert not ring.leaders[2].has_token()
    assert ring.holders() == [1]
    assert ring.leaders[2].holder == 1
    ring.enter(0)  # again, without the token
    assert ring.holders() == [1]


def test_the_dead_are_remembered_by_pid_and_start(monkeypatch):
    ring = Ring(3)
    ring.enter(0, 1, 2)
    ring.words[1:5] = [7, 1, 8, 2]
    del ring.leaders[0], ring.leaders[1]
    dead = {(7, 1), (8, 2)}
    monkeypatch.setattr(process, "is_alive", lambda *own: own not in dead)
    for holders in ([], [2]):  # one process is looked at each time
        ring.now_s += 2 * POLL_S
        assert ring.holders() == holders
    ring.words[0] = 0
    ring.words[1:3] = 7, 3  # in another container
    ring.now_s += 2 * POLL_S
    assert ring.holders() == []


def test_a_leader_with_the_pid_of_its_successor_was_replaced():
    ring = Ring(2)
    ring.enter(0, 1)
    ring.words[2] += 1  # its start
    assert ring.holders() == []

"""Tests of members that are killed or stopped, and of a node that is gone for a lease."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from functools import partial

import pytest

import smbox

pytestmark = pytest.mark.shares

LEASE_S = 1.0
WAIT_S = 60.0

MEMBER = """
member = smbox.join(box, "run", lease_s=float(sys.argv[3]), rank=RANK)
print(member.rank, member.progress, member.late, flush=True)
for line in sys.stdin:
    try:
        match line.split():
            case ["progress", value]:
                member.progress = int(value)
                print("set", flush=True)
            case ["fork"]:
                if (child := os.fork()) == 0:
                    time.sleep(600)
                print(child, flush=True)
            case ["end"]:
                break
    except smbox.LeaseLostError:
        print("lost", flush=True)
"""


class Remote:
    """A member in its own process."""

    def __init__(self, place, rank=None, transport="shm", lease_s=LEASE_S, **environment):
        code = MEMBER.replace("RANK", str(rank))
        self.process = place.script(code, transport, lease_s, **environment)
        told = self.process.stdout.readline().split()
        assert len(told) == 3, self.process.communicate()[1]
        self.rank, self.progress, self.late = int(told[0]), int(told[1]), told[2] == "True"

    def ask(self, line):
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().strip()

    def signal(self, number):
        os.kill(self.process.pid, number)

    def kill(self):
        self.process.kill()
        self.process.wait(WAIT_S)


def test_a_killed_member_is_replaced_at_once_on_its_host(place):
    with smbox.join(place.box(), "run", lease_s=600.0) as here:
        first = Remote(place, rank=1, lease_s=600.0)
        assert (first.rank, first.late, first.ask("progress 17")) == (1, False, "set")
        assert here.count == 2
        first.kill()
        second = Remote(place, rank=1, lease_s=600.0)
        assert (second.progress, second.late, here.count) == (17, True, 2)
        second.kill()
        third = Remote(place, lease_s=600.0)
        assert (third.rank, here.count) == (1, 2)
        assert here.members()[1].pid == third.process.pid


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_a_stopped_member_is_out_after_its_lease_and_learns_that_it_was_replaced(
    place, transport, until
):
    with smbox.join(place.box(), "run", lease_s=LEASE_S) as here:
        stopped = Remote(place, transport=transport)
        stopped.ask("progress 5")
        stopped.signal(signal.SIGSTOP)
        until(lambda: here.count == 1)
        assert [each.pid for each in here.missing()] == [stopped.process.pid]
        successor = Remote(place, transport=transport)
        assert (successor.rank, successor.progress) == (1, 5)
        assert successor.ask("progress 9") == "set"
        stopped.signal(signal.SIGCONT)
        assert stopped.ask("progress 99") == "lost"
        assert stopped.ask("progress 99") == "lost"
        found = here.members()
        assert [(each.rank, each.progress) for each in found] == [(0, 0), (1, 9)]
        assert found[1].pid == successor.process.pid


def test_a_stopped_member_goes_on_where_nobody_replaced_it(place, until):
    with smbox.join(place.box(), "run", lease_s=LEASE_S) as here:
        stopped = Remote(place)
        stopped.signal(signal.SIGSTOP)
        until(lambda: here.count == 1)
        stopped.signal(signal.SIGCONT)
        assert stopped.ask("progress 3") == "set"
        assert here.count == 2
        assert here.missing() == []


def test_a_child_of_a_killed_member_does_not_keep_its_place(place, until):
    with smbox.join(place.box(), "run", lease_s=LEASE_S) as here:
        parent = Remote(place)
        child = int(parent.ask("fork"))
        try:
            assert here.count == 2
            parent.kill()
            until(lambda: here.count == 1)
            os.kill(child, 0)
        finally:
            os.kill(child, signal.SIGKILL)


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_nobody_loses_a_lease_because_the_node_was_gone(place, transport, monkeypatch):
    monkeypatch.setenv("SMBOX_RESEND_AFTER_MAX_S", "0.2")
    lease_s = 2.0
    with smbox.join(place.box(transport), "run", lease_s=lease_s) as here:
        there = Remote(place, transport="tcp", lease_s=lease_s)
        assert here.count == 2
        place.node.kill()
        ends_s = time.monotonic() + 2 * lease_s
        while time.monotonic() < ends_s:
            assert here.seen.count == 2
            time.sleep(0.05)
        place.node.start_and_wait()
        for _ in range(40):
            assert here.seen.count == 2
            time.sleep(0.05)
        assert there.ask("progress 4") == "set"
        here.progress = 5
        assert [each.progress for each in here.members()] == [5, 4]
        generations = here.read().words[:2, 0] >> 40
        assert generations.tolist() == [1, 1]


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_a_script_that_ends_leaves_without_a_word(place, transport):
    with smbox.join(place.box(), "run", lease_s=600.0) as here:
        there = Remote(place, transport=transport, lease_s=600.0)
        assert here.count == 2
        _, error = there.process.communicate("end\n", timeout=WAIT_S)
        assert (there.process.returncode, error) == (0, "")
        assert (here.count, here.missing()) == (1, [])


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_a_child_that_multiprocessing_forks_leaves_and_closes_its_boxes(place, transport):
    """It runs no exit functions: its rank stayed taken, and the node kept its channels."""
    box = place.box(transport)
    context, sessions = multiprocessing.get_context("fork"), box.stats()["sessions"]
    member = partial(smbox.join, box, "run", lease_s=600.0)
    child = context.Process(target=member, kwargs={"rank": 1})
    with member(rank=0) as here:
        child.start()
        child.join(WAIT_S)
        assert child.exitcode == 0
        assert (here.count, here.missing()) == (1, [])
        assert [each.rank for each in here.members()] == [0]
    assert box.stats()["sessions"] <= sessions + 1


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_a_script_ends_without_a_word_where_the_node_is_gone(place, transport):
    there = Remote(place, transport=transport)
    place.node.kill()
    time.sleep(LEASE_S)  # so that renewals are in flight without an answer
    _, error = there.process.communicate("end\n", timeout=WAIT_S)
    assert (there.process.returncode, error) == (0, "")
    place.node.start_and_wait()

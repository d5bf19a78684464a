"""Tests of lock holders that are killed or stopped, and of a node that restarts."""

from __future__ import annotations

import os
import signal
import time

import pytest

import smbox
from smbox.errors import RequestTimeoutError

pytestmark = pytest.mark.shares

LEASE_S = 1.0
WAIT_S = 60.0

HOLDER = """
lock = box.lock("door", lease_s=float(sys.argv[3]), timeout_s=60.0)
print(lock.acquire(), flush=True)
for line in sys.stdin:
    try:
        match line.strip():
            case "check":
                lock.check()
                print("held", flush=True)
            case "fork":
                if (child := os.fork()) == 0:
                    try:
                        lock.check()
                    except smbox.LeaseLostError:
                        os._exit(7)
                    os._exit(0)
                print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
            case "end":
                break
    except smbox.LeaseLostError:
        print("lost", flush=True)
"""


class Holder:
    """A process that holds the lock."""

    def __init__(self, place, transport="shm", lease_s=LEASE_S):
        self.process = place.script(HOLDER, transport, lease_s)
        told = self.process.stdout.readline()
        assert told, self.process.communicate()[1]
        self.fence = int(told)

    def ask(self, line):
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().strip()

    def signal(self, number):
        os.kill(self.process.pid, number)


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_a_killed_holder_on_this_host_loses_the_lock_at_once(place, transport):
    holder = Holder(place, transport, lease_s=600.0)
    with pytest.raises(RequestTimeoutError) as raised:
        place.box(transport).lock("door").acquire(timeout_s=0.0)
    assert raised.value.facts["pid"] == holder.process.pid
    holder.process.kill()
    holder.process.wait(WAIT_S)
    lock = place.box(transport).lock("door", lease_s=600.0)
    assert lock.holder() is None
    assert lock.acquire(timeout_s=WAIT_S) > holder.fence
    lock.release()


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_a_stopped_holder_learns_that_another_one_had_the_lock(place, transport):
    holder = Holder(place, transport)
    holder.signal(signal.SIGSTOP)
    lock = place.box(transport).lock("door", lease_s=LEASE_S)
    fence = lock.acquire(timeout_s=WAIT_S)
    assert fence > holder.fence
    holder.signal(signal.SIGCONT)
    assert holder.ask("check") == "lost"
    lock.check()
    lock.release()


def test_a_restart_of_the_node_takes_the_lock_from_nobody(place):
    holder = Holder(place, "tcp")
    time.sleep(LEASE_S / 2)
    place.restart()
    time.sleep(2 * LEASE_S)
    with pytest.raises(RequestTimeoutError):
        place.box("tcp").lock("door", lease_s=LEASE_S).acquire(timeout_s=0.0)
    assert holder.ask("check") == "held"


def test_a_forked_child_does_not_hold_its_parents_lock(place):
    holder = Holder(place, lease_s=600.0)
    assert holder.ask("fork") == "7"
    assert holder.ask("check") == "held"


def test_a_process_that_ends_or_closes_its_box_leaves_no_lock(place):
    holder = Holder(place, "tcp", lease_s=600.0)
    holder.ask("check")
    holder.process.stdin.write("end\n")
    holder.process.stdin.flush()
    assert holder.process.wait(WAIT_S) == 0
    box = smbox.connect(place.address("tcp"), transport="tcp", timeout_s=WAIT_S)
    box.lock("door", lease_s=600.0).acquire(timeout_s=WAIT_S)
    box.close()
    place.box().lock("door").acquire(timeout_s=5.0)


def test_a_waiter_at_the_nodes_host_takes_no_lock_while_the_node_is_away(place):
    """The holder is on another host and cannot renew its lease while the node is away."""
    lock = place.box("shm").lock("door", lease_s=LEASE_S)
    holder = Holder(place, "tcp")
    place.node.kill()
    with pytest.raises(RequestTimeoutError):
        lock.acquire(timeout_s=4 * LEASE_S)
    place.node.start_and_wait()
    assert holder.ask("check") == "held"


def test_a_box_with_a_lock_closes_soon_when_its_node_is_away(place):
    box = place.box("tcp")
    box.lock("door", lease_s=600.0).acquire()
    place.node.kill()
    began_s = time.monotonic()
    box.close()
    assert time.monotonic() - began_s < WAIT_S / 4
    place.node.start_and_wait()

"""Catching a process inside a commit."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys

import pytest

from smbox.memory.journal import slot_words
from smbox.memory.layout import Slot, SlotState
from smbox.memory.node_memory import NodeMemory
from smbox.testing.chaos.commit_watch import catch

pytestmark = pytest.mark.usefixtures("quick_starts")

WRITER = """
import sys
from smbox.memory.journal import Writer, slot_words
from smbox.memory.layout import Slot
writer = Writer.create(sys.argv[1])
slot_words(writer.segment)[Slot.STATE] += int(sys.argv[2])
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def node():
    memory = NodeMemory.open(f"test-{os.getpid()}", 64 << 20)
    yield memory
    memory.close(keep=False)


@pytest.fixture
def write(node):
    processes = []

    def started(state):
        command = [sys.executable, "-c", WRITER, node.name, str(state)]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        processes.append(subprocess.Popen(command, **pipes, text=True))
        assert processes[-1].stdout.readline() == "ready\n"
        return processes[-1].pid

    yield started
    for process in processes:
        process.kill()
        process.communicate()


def is_stopped(pid):
    with open(f"/proc/{pid}/stat") as stat:
        return stat.read().rpartition(")")[2].split()[0] == "T"


@pytest.mark.parametrize("state", [SlotState.ARMED, SlotState.COMMITTED])
def test_it_stops_who_is_inside(node, write, state):
    pid = write(state)
    assert catch(node.name, pid, random.Random(1), tries=3)
    assert is_stopped(pid)


def test_who_is_elsewhere_runs_on(node, write):
    pid = write(SlotState.FREE)
    assert not catch(node.name, pid, random.Random(1), tries=3)
    os.kill(pid, signal.SIGCONT)
    assert not is_stopped(pid)


def test_others_are_left_alone(node, write):
    pid = write(SlotState.ARMED)
    assert not catch(node.name, os.getppid(), random.Random(1), tries=3)
    assert not is_stopped(pid)
    assert slot_words(node.writer.segment)[Slot.STATE] == SlotState.FREE

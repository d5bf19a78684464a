"""A limit of the system at any open file of a starting node: refused or complete."""

from __future__ import annotations

import contextlib

import numpy as np

from smbox.errors import SystemLimitError
from smbox.memory.layout import SlotState
from smbox.memory.node_memory import NodeMemory
from smbox.testing.dead_writer import leave_open
from smbox.testing.few_files import failing_open


def close_as(memory: NodeMemory, found: NodeMemory) -> None:
    """Close the memory ``found``, and open it again in the object ``memory``."""
    found.close(keep=True)
    memory.__init__(memory.name, type(memory.superblock).own(memory.name, 64 << 20))


def restart(memory: NodeMemory, nth: int) -> tuple[NodeMemory, bool]:
    """Restart a node whose ``nth`` open file is one too many, and again if it is refused.

    Returns:
        The memory, and whether there were so many files.
    """
    memory.close(keep=True)
    with failing_open(nth) as failure, contextlib.suppress(SystemLimitError):
        return NodeMemory.open(memory.name, 64 << 20), failure.has_struck
    return NodeMemory.open(memory.name, 64 << 20), True


def test_a_start_that_can_open_too_few_files_loses_nothing(memory, make):
    address, row = make(np.ones(2, np.float32)).address, memory.channels.claim(b"5" * 16, 0)
    channel, found, nth = (row.index + 1, row.serial), memory, -1
    has_struck = True
    while has_struck:
        nth += 1
        number = (*channel, nth + 1)
        committed = found.regions[address]
        leave_open(committed, first=0, limit=8, state=SlotState.COMMITTED, channel=number)
        found, has_struck = restart(found, nth)
        assert found.channels.find(b"5" * 16, 0).applied == nth + 1
        assert list(found.regions) == [address]
    close_as(memory, found)


def test_a_start_that_can_open_too_few_files_adopts_no_memory_of_a_stop(memory, make):
    make(np.ones(2, np.float32))
    found, has_struck, nth = memory, True, -1
    while has_struck:
        nth += 1
        uuid = found.superblock.uuid
        found.superblock.mark_stopping()
        found, has_struck = restart(found, nth)
        assert found.superblock.uuid != uuid
        assert found.regions == {}
    close_as(memory, found)

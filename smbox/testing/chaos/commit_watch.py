"""Waiting until a process is inside a commit, so that a kill interrupts the commit.

The process is stopped and its journal slot looked at. A process that is outside a commit goes
on and is stopped again.
"""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path
from typing import Final

from smbox.errors import SegmentError
from smbox.memory.journal import attach_slot
from smbox.memory.layout import Slot, SlotState, name_of
from smbox.memory.segment import Segment, listing

TRIES: Final = 300
STOP_S: Final = 1.0
PAUSE_S_MAX: Final = 0.001


def catch(node: str, pid: int, rng: random.Random, tries: int = TRIES) -> bool:
    """Stop a process inside a commit; False, and it runs, if no try met it there."""
    slots = [slot for slot in _slots(node) if slot.words(0, Slot.WORDS)[Slot.PID] == pid]
    for _ in range(tries if slots else 0):
        try:
            os.kill(pid, signal.SIGSTOP)
            if _is_stopped(pid) and any(map(_is_inside, slots)):
                return True
            os.kill(pid, signal.SIGCONT)
        except ProcessLookupError:
            return False
        time.sleep(rng.uniform(0, PAUSE_S_MAX))
    return False


def _slots(node: str) -> list[Segment]:
    found = []
    for name in listing(name_of(node, "slot.")):
        try:
            found.append(attach_slot(node, int(name[-16:], 16)))
        except SegmentError:  # swept away meanwhile
            continue
    return found


def _is_inside(slot: Segment) -> bool:
    state = int(slot.words(0, Slot.WORDS)[Slot.STATE]) & SlotState.MASK
    return state in {SlotState.ARMED, SlotState.COMMITTED}


def _is_stopped(pid: int) -> bool:
    """Wait until a process that was sent SIGSTOP has stopped."""
    deadline_s = time.monotonic() + STOP_S
    while time.monotonic() < deadline_s:
        try:
            stat = Path(f"/proc/{pid}/stat").read_text()
        except FileNotFoundError:
            return False
        if stat.rpartition(")")[2].split()[0] == "T":
            return True
    return False

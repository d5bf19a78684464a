"""Memories of a few KiB with stripes of 256 bytes: short enough to step every instruction.

The native library reads the sizes of stripes and blocks from fields at run time: the stepped
code is the shipped code.
"""

from __future__ import annotations

import os
import sys
from typing import Final

from smbox.memory import layout, segment
from smbox.memory.journal import Writer
from smbox.memory.node_memory import NodeMemory

STRIPE_NBYTES: Final = 256
BLOCK_NBYTES: Final = 64
MEMORY_NBYTES: Final = 1 << 20
_CHANNEL_ROWS: Final = 8
_SLOT_NBYTES: Final = layout.PAGE_NBYTES + layout.Slot.EXTENTS_MAX * STRIPE_NBYTES


def shrink() -> None:
    """Make stripes, slots and the channel table small until this process ends."""
    small = {"STRIPE_NBYTES": STRIPE_NBYTES, "CHANNEL_ROWS": _CHANNEL_ROWS}
    for name, module in list(sys.modules.items()):
        for constant, value in small.items() if name.startswith("smbox.memory.") else ():
            if hasattr(module, constant):
                setattr(module, constant, value)
    slot: type = layout.Slot
    setattr(slot, "NBYTES", _SLOT_NBYTES)  # noqa: B010 - it is Final


def small_writer(memory: NodeMemory) -> Writer:
    """Return a writer on the node's slot, with small blocks; the memory closes it."""
    return Writer(memory.writer.segment, memory.writer.locks, BLOCK_NBYTES)


class MappedMemory:
    """All segments of a node's memory, mapped: what a kill of its writer would leave.

    Args:
        node: name of the memory node.
    """

    def __init__(self, node: str) -> None:
        self.node = node
        self._parts = {
            name: segment.Segment.attach(name)
            for name in segment.listing(layout.name_of(node))
            if name != layout.name_of(node, "locks")
        }

    def contents(self) -> dict[str, bytes]:
        """Return the bytes of each segment."""
        return {name: part.bytes.tobytes() for name, part in self._parts.items()}

    def close(self) -> None:
        """Drop the mappings."""
        for part in self._parts.values():
            part.close()


def restore(contents: dict[str, bytes], node: str, copy: str) -> None:
    """Write contents as the memory of another node: without locks, all its writers are dead."""
    for name, data in contents.items():
        _write(name.replace(f".{node}.", f".{copy}.", 1), data)
    _write(layout.name_of(copy, "locks"), b"")


def _write(name: str, data: bytes) -> None:
    fd = os.open(segment.DIRECTORY / name, os.O_CREAT | os.O_TRUNC | os.O_WRONLY, segment.MODE)
    try:
        os.write(fd, data)
    finally:
        os.close(fd)

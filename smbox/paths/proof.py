"""The proof that this process shares a node's memory: the memory itself, found under its name.

Sharing a host proves nothing (containers). The superblock in this /dev/shm must carry the
uuid that the node told us, and we must be allowed to open its locks.
"""

from __future__ import annotations

from smbox.errors import PeerLostError, SegmentError
from smbox.memory import layout
from smbox.memory.layout import Superblock
from smbox.memory.locks import LockFile
from smbox.memory.segment import NoSegmentError, Segment
from smbox.paths.work import NodeInfo


def why_not_shared(node: NodeInfo) -> str | None:
    """Tell why this process cannot map the node's memory; None if it can."""
    try:
        uuid, found_format = _found(node.name)
        LockFile(node.name).close()
    except SegmentError as error:
        return f"the node's memory is not in this /dev/shm ({error.message})"
    if uuid != node.uuid:
        return "another node of the same name keeps its memory in this /dev/shm"
    if found_format != layout.FORMAT:
        return f"the node's memory has format {found_format}, this client knows {layout.FORMAT}"
    return None


def check_not_another(node: NodeInfo) -> None:
    """Raise PeerLostError if another memory has the node's name; not if there is none."""
    try:
        uuid, _ = _found(node.name)
    except NoSegmentError:  # stopped, and nobody has begun anew
        return
    except SegmentError:
        uuid = b""
    if uuid != node.uuid:
        check_still_shared(node)


def _found(node: str) -> tuple[bytes, int]:
    """Return uuid and format of the memory of this name."""
    with Segment.attach(layout.node_name(node)) as segment:
        words = segment.words(0, Superblock.MEMORY_NBYTES + 1)
        uuid = words[Superblock.UUID_LOW : Superblock.UUID_HIGH + 1].tobytes()
        return uuid, int(words[Superblock.FORMAT])


def check_still_shared(node: NodeInfo) -> None:
    """Raise PeerLostError if the node's name has come to mean another memory."""
    why_not = why_not_shared(node)
    if why_not is not None:
        raise PeerLostError(f"connect again: {why_not}", node=node.name, outcome="none")

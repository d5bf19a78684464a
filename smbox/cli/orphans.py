"""`smbox gc`: find and remove memory whose owner is dead.

Only segments in this host's /dev/shm are looked at, and no node is asked. An owner is a
process by pid *and* start time, so that a pid used again protects nobody's rubbish and a
living owner is never taken for a dead one.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Annotated, Final

import typer

from smbox.cli import output, parts
from smbox.errors import SegmentError
from smbox.memory import journal, layout, process, segment
from smbox.memory.layout import LockByte, Superblock
from smbox.memory.locks import LockFile, take_node_lock
from smbox.memory.segment import Segment
from smbox.memory.superblock import is_stopping, remove_all

NOBODY: Final = 0
"""The pid that a node leaves in its superblock when it lets the memory go."""

SERVING: Final = frozenset({"locks", "building", "channels", "cookie", "ring", "slot"})
"""Kinds of segments that hold nothing that a node could begin with again."""


@dataclass(frozen=True)
class NodeSegments:
    """All segments of one node name.

    Attributes:
        node: name of the node.
        segments: names of its segments.
        nbytes: their size together.
        owner_pid: pid of the node's process, 0 where the superblock is gone.
        state: ``"alive"``; ``"in use"``: its owner is dead, and a living process still works in
            it; ``"dead"``: its owner was killed, maybe in removing it; ``"kept"``: its owner
            left it on purpose (``memnode --keep``); ``"unknown"``: no superblock says who owned
            it, and it may hold regions, or some of it is another user's.
    """

    node: str
    segments: tuple[str, ...]
    nbytes: int
    owner_pid: int
    state: str


def survey() -> list[NodeSegments]:
    """List the memory of every node in this /dev/shm, by name."""
    names: dict[str, list[str]] = defaultdict(list)
    for name in segment.listing(layout.PREFIX):
        names[name.removeprefix(layout.PREFIX).split(".")[0]].append(name)
    return [_look_at(node, tuple(found)) for node, found in sorted(names.items())]


def _look_at(node: str, segments: tuple[str, ...]) -> NodeSegments:
    owner = _recorded_owner(node)
    pid = 0 if owner is None else owner[0]
    return NodeSegments(
        node, segments, sum(map(segment.size, segments)), pid, _state(node, owner, segments)
    )


def _recorded_owner(node: str) -> tuple[int, int] | None:
    """Return pid and start time of the process that last owned the memory, if it says so."""
    try:
        with Segment.attach(layout.node_name(node)) as superblock:
            words = superblock.words(0, layout.PAGE_NBYTES // layout.WORD_NBYTES)
    except SegmentError:
        return None
    known = [Superblock.MAGIC_VALUE, layout.FORMAT]
    if words[[Superblock.MAGIC, Superblock.FORMAT]].tolist() != known:
        return None  # another version may keep something else where we look for the owner
    return int(words[Superblock.PID]), int(words[Superblock.PID_STARTED])


def _state(node: str, owner: tuple[int, int] | None, segments: tuple[str, ...]) -> str:
    if any(map(segment.is_untrusted, segments)):
        return "unknown"
    if _is_locked(node):
        return "alive"
    if is_stopping(node):
        return "dead"
    if _is_in_use(node):
        return "in use"
    if owner is None:
        return "dead" if _is_remnant(node, segments) else "unknown"
    if process.is_alive(*owner):
        return "alive"
    return "kept" if owner[0] == NOBODY else "dead"


def _is_remnant(node: str, segments: tuple[str, ...]) -> bool:
    """Return whether nothing is left but what serves a superblock or regions.

    Regions without a superblock are another matter: only people know what they hold.
    """
    kinds = {name.removeprefix(f"{layout.PREFIX}{node}.").split(".")[0] for name in segments}
    return kinds <= SERVING


def _is_in_use(node: str) -> bool:
    """Return whether a local client of the node lives."""
    return any(journal.is_alive(node, slot_id) for slot_id in journal.slot_ids(node))


def _is_locked(node: str) -> bool:
    """Return whether a process holds the node's lock: it may be opening the memory just now."""
    try:
        locks = LockFile(node)
    except SegmentError:
        return False
    try:
        return locks.is_held(LockByte.NODE)
    finally:
        locks.close()


def remove(memory: NodeSegments) -> bool:
    """Remove the memory of a dead node; False if somebody owns it by now.

    The node's lock is held meanwhile, so that a node that starts just now is not robbed.
    """
    if memory.state not in {"dead", "kept"}:
        return False
    locks = take_node_lock(memory.node)
    if locks is None:
        return False
    try:
        return _remove_locked(memory.node)
    finally:
        locks.close()


def _remove_locked(node: str) -> bool:
    owner = _recorded_owner(node)
    segments = tuple(segment.listing(f"{layout.PREFIX}{node}."))
    is_dead = _is_remnant(node, segments) if owner is None else not process.is_alive(*owner)
    if not is_stopping(node) and (not is_dead or _is_in_use(node)):
        return False
    remove_all(node)
    return True


def gc(
    *,
    yes: Annotated[
        bool, typer.Option("--yes", help="Remove it instead of only showing it.")
    ] = False,
    kept: Annotated[
        bool, typer.Option("--kept", help="Include memory kept by memnode --keep.")
    ] = False,
    address: Annotated[
        str | None,
        typer.Option(
            "--address",
            "-a",
            help="Addresses of all nodes: process orphaned parts there instead.",
        ),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show, or with --yes remove, memory in /dev/shm whose memory node is dead.

    A node that was killed leaves its memory on purpose: started again under its name, it
    goes on with it. Remove only what nobody will come back for; what a living process still
    works in is kept. With --address it asks these nodes, for parts of striped regions whose
    creator died; run that while nobody creates striped regions.
    """
    if address is not None:
        parts.collect(address, yes=yes, json=json)
        return
    found = survey()
    states = {"dead", "kept"} if kept else {"dead"}
    doomed = [memory for memory in found if memory.state in states]
    gone = {memory.node for memory in doomed if yes and remove(memory)}
    if json:
        output.print_json([_shown(memory, gone) for memory in found])
        return
    output.print_table(
        ["NODE", "OWNER", "STATE", "SEGMENTS", "SIZE", "ACTION"],
        [
            [
                memory.node,
                memory.owner_pid or "-",
                memory.state,
                len(memory.segments),
                output.human_nbytes(memory.nbytes),
                _action(memory, doomed, gone),
            ]
            for memory in found
        ],
    )


def _action(memory: NodeSegments, doomed: list[NodeSegments], gone: set[str]) -> str:
    if memory.node in gone:
        return "removed"
    return "would remove (--yes)" if memory in doomed else "keep"


def _shown(memory: NodeSegments, gone: set[str]) -> dict[str, object]:
    return {
        "node": memory.node,
        "owner_pid": memory.owner_pid,
        "state": memory.state,
        "segments": list(memory.segments),
        "nbytes": memory.nbytes,
        "removed": memory.node in gone,
    }

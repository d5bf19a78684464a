"""`smbox gc`: find and remove the memory of dead nodes, and orphaned parts of striped regions.

Without --address it reads only the segments in this host's /dev/shm, and sends no request. The
pid *and* the start time identify an owner: another process with the same pid is not the owner.
"""

from __future__ import annotations

from collections import defaultdict
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Annotated, Final

import typer

from smbox.cli import layouts, output
from smbox.connecting import connect
from smbox.errors import ConfigError, RegionFreedError, SegmentError
from smbox.memory import journal, layout, process, segment
from smbox.memory.layout import LockByte, Superblock
from smbox.memory.locks import LockFile, take_node_lock
from smbox.memory.segment import Segment
from smbox.memory.superblock import is_stopping, remove_all
from smbox.paths.requests import RegionInfo

NO_OWNER: Final = 0
"""The pid in the superblock of a memory that its node released."""

AUXILIARY: Final = frozenset({"locks", "building", "channels", "cookie", "ring", "slot"})
"""Kinds of segments that are useless without a superblock or regions."""


@dataclass(frozen=True)
class NodeSegments:
    """All segments of one node name.

    Attributes:
        node: name of the node.
        segments: names of its segments.
        nbytes: total size of its segments.
        owner_pid: pid of the node's process; 0 if there is no superblock.
        state: ``"alive"``; ``"in use"``: its owner is dead, but a living process uses it;
            ``"dead"``: its owner was killed, perhaps while it removed the memory; ``"kept"``:
            its owner kept it (``memnode --keep``); ``"unknown"``: there is no superblock and
            there may be regions, or another user owns a segment.
    """

    node: str
    segments: tuple[str, ...]
    nbytes: int
    owner_pid: int
    state: str


def survey() -> list[NodeSegments]:
    """Return the memory of every node in this host's /dev/shm, in order of names."""
    names: dict[str, list[str]] = defaultdict(list)
    for name in segment.listing(layout.PREFIX):
        names[name.removeprefix(layout.PREFIX).split(".")[0]].append(name)
    return [_look_at(node, tuple(found)) for node, found in sorted(names.items())]


def _look_at(node: str, segments: tuple[str, ...]) -> NodeSegments:
    owner = _recorded_owner(node)
    pid = 0 if owner is None else owner[0]
    state = "alive" if _is_locked(node) else _state(node, owner, segments)
    return NodeSegments(node, segments, sum(map(segment.size, segments)), pid, state)


def _recorded_owner(node: str) -> tuple[int, int] | None:
    """Return pid and start time of the last owner, or None if no superblock contains them."""
    try:
        superblock = Segment.attach(layout.name_of(node, "node"))
        words = superblock.words(0, layout.PAGE_NBYTES // layout.WORD_NBYTES)
    except SegmentError:
        return None
    known = [Superblock.MAGIC_VALUE, layout.FORMAT]
    if words[[Superblock.MAGIC, Superblock.FORMAT]].tolist() != known:
        return None  # another format may have other words in the place of the owner
    return int(words[Superblock.PID]), int(words[Superblock.PID_STARTED])


def _state(node: str, owner: tuple[int, int] | None, segments: tuple[str, ...]) -> str:
    """Return the state of a memory whose node's lock no other process holds."""
    if any(map(segment.is_untrusted, segments)):
        return "unknown"
    if is_stopping(node):
        return "dead"
    if _is_in_use(node):
        return "in use"
    if owner is None:
        return "dead" if _is_remnant(node, segments) else "unknown"
    if process.is_alive(*owner):
        return "alive"
    return "kept" if owner[0] == NO_OWNER else "dead"


def _is_remnant(node: str, segments: tuple[str, ...]) -> bool:
    """Return True if there are only auxiliary segments.

    Regions without a superblock are not a remnant: their data may be valuable.
    """
    kinds = {name.removeprefix(layout.name_of(node)).split(".")[0] for name in segments}
    return kinds <= AUXILIARY


def _is_in_use(node: str) -> bool:
    """Return True if a local client of the node is alive."""
    return any(journal.is_alive(node, slot_id) for slot_id in journal.slot_ids(node))


def _is_locked(node: str) -> bool:
    """Return True if a process holds the node's lock: perhaps it is opening the memory."""
    try:
        locks = LockFile(node)
    except SegmentError:
        return False
    try:
        return locks.is_held(LockByte.NODE)
    finally:
        locks.close()


def remove(memory: NodeSegments) -> bool:
    """Remove the memory of a dead node; return False if its state is another one now.

    It holds the node's lock, so that a node cannot start at the same time.
    """
    if memory.state not in {"dead", "kept"}:
        return False
    locks = take_node_lock(memory.node)
    if locks is None:
        return False
    try:
        return _remove_locked(memory)
    finally:
        locks.close()


def _remove_locked(memory: NodeSegments) -> bool:
    node = memory.node
    segments = tuple(segment.listing(layout.name_of(node)))
    if _state(node, _recorded_owner(node), segments) not in {memory.state, "dead"}:
        return False  # a node has owned it since, and perhaps kept it
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
            help="Addresses of all nodes: find orphaned parts of striped regions instead.",
        ),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show, or with --yes remove, memory in /dev/shm whose memory node is dead.

    The memory of a killed node remains: a node that starts again under its name continues with
    it. Remove only memory that nobody needs. Memory in use by a living process stays.
    With --address, the command finds parts of striped regions on these nodes whose creator
    died; run it while no client creates striped regions.
    """
    if address is not None:
        if kept:
            raise ConfigError("--kept is about memory in /dev/shm: leave out --address")
        _collect_parts(address, yes=yes, json=json)
        return
    found = survey()
    states = {"dead", "kept"} if kept else {"dead"}
    doomed = [memory for memory in found if memory.state in states]
    gone = {memory.node for memory in doomed if yes and remove(memory)}
    if json:
        output.print_json([asdict(m) | {"removed": m.node in gone} for m in found])
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
                _action(memory, [] if yes else doomed, gone),
            ]
            for memory in found
        ],
    )


def _action(memory: NodeSegments, doomed: list[NodeSegments], gone: set[str]) -> str:
    if memory.node in gone:
        return "removed"
    return "would remove (--yes)" if memory in doomed else "keep"


def _collect_parts(address: str, *, yes: bool, json: bool) -> None:
    """Show or remove the orphaned parts on all nodes of an address space."""
    with connect(address) as box:
        found = layouts.find_orphans(box)
        for info in found if yes else ():
            with suppress(RegionFreedError):  # by another client
                box.free(info)
    if json:
        output.print_json([_shown(info, removed=yes) for info in found])
        return
    action = "removed" if yes else "would remove (--yes)"
    output.print_table(
        ["PART", "NODE", "SIZE", "ACTION"],
        [
            [info.name, info.address.node, output.human_nbytes(info.nbytes), action]
            for info in found
        ],
    )


def _shown(info: RegionInfo, *, removed: bool) -> dict[str, object]:
    return {
        "part": info.name,
        "node": info.address.node,
        "nbytes": info.nbytes,
        "address": int(info.address),
        "removed": removed,
    }

"""Layout names of regions: single-node, striped, part of a striped region, or orphan."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Final, NamedTuple

from smbox import dtypes
from smbox.box import Box
from smbox.errors import AddressRangeError, RegionFreedError
from smbox.head import Head, home_of_part, part_name_in, read
from smbox.memory.layout import RegionKind
from smbox.paths.work import RegionInfo

SINGLE: Final = "single"
STRIPED: Final = "striped"
PART: Final = "part"
ORPHAN: Final = "orphan"


class Listed(NamedTuple):
    """A region as the commands show it.

    Attributes:
        info: of the region at its node; of a striped region, of its head.
        layout: one of the four words.
        whole: as people know it: of a striped region, with the dtype and shape of the whole.
    """

    info: RegionInfo
    layout: str
    whole: RegionInfo


def survey(box: Box) -> list[Listed]:
    """List all regions of all nodes, by address."""
    lost = {int(info.address) for info in find_orphans(box)}
    infos = box.regions()
    heads = _heads(box, infos)
    return [_listed(info, heads.get(int(info.address)), lost) for info in infos]


def _listed(info: RegionInfo, head: Head | None, lost: set[int]) -> Listed:
    if head is not None:
        return Listed(info, STRIPED, _whole(info, head))
    if _part_name_of(info) is None:
        return Listed(info, SINGLE, info)
    return Listed(info, ORPHAN if int(info.address) in lost else PART, info)


def _whole(info: RegionInfo, head: Head) -> RegionInfo:
    dtype = dtypes.by_name(head.dtype)
    return replace(info, dtype=dtype, shape=head.shape, consistency=head.consistency)


def _part_name_of(info: RegionInfo) -> str | None:
    """Return the name of the part that a region is, or that its state is of; None: of none."""
    return part_name_in(info.name) if info.kind == RegionKind.ARRAY else None


def _heads(box: Box, infos: Sequence[RegionInfo]) -> dict[int, Head]:
    """Read the heads among regions, by address; one that is freed meanwhile is none."""
    found: dict[int, Head] = {}
    for info in infos:
        with suppress(RegionFreedError, AddressRangeError):
            head = read(info, partial(box.get, info.address))
            if head is not None:
                found[int(info.address)] = head
    return found


def find_orphans(box: Box) -> list[RegionInfo]:
    """List the parts, and the optimizers' states beside them, that no head names.

    Only parts whose head would lie on a node of this box: of others nobody here can tell.
    Parts are listed before heads are looked at, so that a region that is published meanwhile
    loses none; one that is being created just now is listed.
    """
    known = {node.node_id for node in box.nodes}
    parts: list[tuple[RegionInfo, str]] = []
    for info in box.regions():
        name = _part_name_of(info)
        if name is not None and home_of_part(name) in known:
            parts.append((info, name))
    owned = {head.part_name for head in _heads(box, box.regions()).values()} if parts else {}
    return [info for info, name in parts if name not in owned]

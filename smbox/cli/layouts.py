"""Layout names of regions: single-node, striped, part of a striped region, or orphan."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Final, NamedTuple

from msgspec.structs import replace

from smbox import dtypes
from smbox.box import Box
from smbox.errors import AddressRangeError, RegionFreedError
from smbox.head import Head, home_of_part, part_name_in, read
from smbox.memory.layout import RegionKind
from smbox.paths.requests import RegionInfo

SINGLE: Final = "single"
STRIPED: Final = "striped"
PART: Final = "part"
ORPHAN: Final = "orphan"


class Listed(NamedTuple):
    """A region in the output of the commands.

    Attributes:
        info: description of the region; of a striped region, that of its head.
        layout: one of the four layout names.
        whole: ``info``; of a striped region, with the dtype and shape of the entire region.
    """

    info: RegionInfo
    layout: str
    whole: RegionInfo


def survey(box: Box) -> list[Listed]:
    """Return all regions of all nodes, in order of address."""
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
    """Return the part name if a region is a part or an optimizer state of one, else None."""
    return part_name_in(info.name) if info.kind == RegionKind.ARRAY else None


def _heads(box: Box, infos: Sequence[RegionInfo]) -> dict[int, Head]:
    """Return the heads among regions, by address, without those freed in the meantime."""
    found: dict[int, Head] = {}
    for info in infos:
        with suppress(RegionFreedError, AddressRangeError):
            head = read(info, partial(box.get, info.address))
            if head is not None:
                found[int(info.address)] = head
    return found


def find_orphans(box: Box) -> list[RegionInfo]:
    """Return the parts, and their optimizer states, that no head refers to.

    The result contains only parts whose head would be on a node of this box. It lists parts
    before it reads heads, so that a region that is published in the meantime loses no parts.
    Parts of a region that is being created are in the result.
    """
    known = {node.node_id for node in box.nodes}
    parts: list[tuple[RegionInfo, str]] = []
    for info in box.regions():
        name = _part_name_of(info)
        if name is not None and home_of_part(name) in known:
            parts.append((info, name))
    owned = {head.part_name for head in _heads(box, box.regions()).values()} if parts else {}
    return [info for info, name in parts if name not in owned]

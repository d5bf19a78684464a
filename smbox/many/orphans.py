"""Parts that no head names: what a creator left that died half way, or a node that was lost."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from functools import partial

from smbox.box import Box
from smbox.errors import AddressRangeError, RegionFreedError
from smbox.head import Head, home_of_part, part_name_in, read
from smbox.memory.layout import RegionKind
from smbox.paths.work import RegionInfo


def part_name_of(info: RegionInfo) -> str | None:
    """Return the name of the part that a region is, or that its state is of; None: of none."""
    return part_name_in(info.name) if info.kind == RegionKind.ARRAY else None


def heads(box: Box, infos: Sequence[RegionInfo]) -> dict[int, Head]:
    """Read the heads among regions, by address; one that is freed meanwhile is none."""
    found: dict[int, Head] = {}
    for info in infos:
        with suppress(RegionFreedError, AddressRangeError):
            head = read(info, partial(box.get, info.address))
            if head is not None:
                found[int(info.address)] = head
    return found


def find(box: Box) -> list[RegionInfo]:
    """List the parts, and the optimizers' states beside them, that no head names.

    Only parts whose head would lie on a node of this box: of others nobody here can tell.
    Parts are listed before heads are looked at, so that a region that is published meanwhile
    loses none; one that is being created just now is listed.
    """
    known = {node.node_id for node in box.nodes}
    parts: list[tuple[RegionInfo, str]] = []
    for info in box.regions():
        name = part_name_of(info)
        if name is not None and home_of_part(name) in known:
            parts.append((info, name))
    owned = {head.part_name for head in heads(box, box.regions()).values()} if parts else {}
    return [info for info, name in parts if name not in owned]

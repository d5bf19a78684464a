"""Parts that no head names: what a creator left that died half way, or a node that was lost."""

from __future__ import annotations

from collections.abc import Sequence

from smbox.box import Box
from smbox.head import Head, decode, may_be_head
from smbox.many.creating import is_part_name
from smbox.memory.layout import RegionKind
from smbox.paths.work import RegionInfo


def part_name_of(info: RegionInfo) -> str | None:
    """Return the name of the part that a region is, or that its state is of; None: of none."""
    name = info.name.partition("/")[0]
    for candidate in (info.name, name):
        if info.kind == RegionKind.ARRAY and is_part_name(candidate):
            return candidate
    return None


def heads(box: Box, infos: Sequence[RegionInfo]) -> dict[int, Head]:
    """Read the heads among regions, by address."""
    found: dict[int, Head] = {}
    for info in infos:
        if info.kind == RegionKind.ARRAY and may_be_head(info):
            head = decode(box.get(info.address, info.nbytes))
            if head is not None:
                found[int(info.address)] = head
    return found


def find(box: Box) -> list[RegionInfo]:
    """List the parts, and the optimizers' states beside them, that no head names.

    Parts are listed before heads are looked at, so that a region that is published meanwhile
    loses none; one that is being created just now is still listed.
    """
    parts = [info for info in box.regions() if part_name_of(info) is not None]
    owned = {head.part_name for head in heads(box, box.regions()).values()}
    return [info for info in parts if part_name_of(info) not in owned]

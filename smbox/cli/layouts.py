"""What the regions of a box are: of one node, striped, a part, or a part that nobody owns."""

from __future__ import annotations

from dataclasses import replace
from typing import Final, NamedTuple

from smbox import dtypes
from smbox.box import Box
from smbox.head import Head
from smbox.many import creating
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
    lost = {int(info.address) for info in creating.find_orphans(box)}
    infos = box.regions()
    heads = creating.heads(box, infos)
    return [_listed(info, heads.get(int(info.address)), lost) for info in infos]


def _listed(info: RegionInfo, head: Head | None, lost: set[int]) -> Listed:
    if head is not None:
        return Listed(info, STRIPED, _whole(info, head))
    if creating.part_name_of(info) is None:
        return Listed(info, SINGLE, info)
    return Listed(info, ORPHAN if int(info.address) in lost else PART, info)


def _whole(info: RegionInfo, head: Head) -> RegionInfo:
    dtype = dtypes.by_name(head.dtype)
    return replace(info, dtype=dtype, shape=head.shape, consistency=head.consistency)

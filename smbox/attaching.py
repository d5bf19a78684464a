"""Finding a region by its name: a region of one node, and no head of a striped one."""

from __future__ import annotations

from smbox import head
from smbox.errors import ConfigError, LayoutMismatchError
from smbox.memory.layout import RegionKind
from smbox.paths.pair import PathPair
from smbox.region import Region


def attach(
    paths: PathPair, name: str, timeout_s: float, answer_s: float | None = None
) -> Region:
    """Find a region; see ``ControlPath.attach``.

    Raises:
        RegionNotFoundError: there was none, within ``timeout_s``.
        ConfigError: it is striped over several nodes, and this is one of them.
    """
    info = paths.control().attach(name, RegionKind.ARRAY, timeout_s, answer_s)
    region = Region(paths, info)
    found = _head_of(region)
    if found is not None:
        raise ConfigError(
            "this region is striped over several nodes: connect to all of them, for example"
            " by SMBOX_ADDRESS=tcp://a:7070,tcp://b:7070",
            region=name,
            nodes=[part.node for part in found.parts],
        )
    return region


def check_single(region: Region) -> None:
    """Raise LayoutMismatchError if a region that was found is the head of a striped one."""
    if _head_of(region) is not None:
        raise LayoutMismatchError(
            "a region of this name is striped over several nodes: take another name, or"
            " layout='striped' on a box over all of them",
            name=region.name,
        )


def _head_of(region: Region) -> head.Head | None:
    return head.read(region.info, lambda nbytes: region[:nbytes].get())

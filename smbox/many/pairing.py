"""Two striped regions part by part: which rows of the one lie beside which of the other."""

from __future__ import annotations

from collections.abc import Sequence

from smbox.errors import ConfigError, LayoutMismatchError
from smbox.many.striping import Placed
from smbox.region import Region


def check_alike(mine: Region, source: Region) -> None:
    """Raise LayoutMismatchError unless both have the same dtype and size."""
    if (source.dtype, source.nbytes) != (mine.dtype, mine.nbytes):
        raise LayoutMismatchError(
            "both regions need the same dtype and size", region=mine.name, source=source.name
        )


def beside(mine: Sequence[Placed], others: Sequence[Placed]) -> dict[int, Region]:
    """Return the other region's part on each node.

    Args:
        mine: rows of a striped region, by node.
        others: of another one; empty for a region of one node.

    Raises:
        ConfigError: the same rows do not lie on the same nodes.
    """
    if [_place(each) for each in mine] != [_place(each) for each in others]:
        raise ConfigError(
            "the same rows of both regions lie on the same nodes, or they cannot be combined"
            " there: get the one and accumulate it into the other",
            nodes=[each.node.id for each in mine],
            source_nodes=[each.node.id for each in others],
        )
    return {each.node.id: each.region for each in others}


def _place(placed: Placed) -> tuple[int, int]:
    return placed.node.id, placed.rows

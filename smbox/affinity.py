"""Where the rows of a region lie. Pure."""

from __future__ import annotations

from typing import Final, NamedTuple

from smbox.address import GlobalAddress
from smbox.errors import ConfigError


class Part(NamedTuple):
    """Consecutive rows of a region (or slice) that lie on one node.

    Attributes:
        node: id of the memory node.
        address: of the first row's first byte.
        first_row: of the region or slice, along axis 0.
        limit_row: the row behind the last; a region without axes counts as one row.
        is_local: whether this process maps the memory.
    """

    node: int
    address: GlobalAddress
    first_row: int
    limit_row: int
    is_local: bool


LAYOUTS: Final = ("single", "striped")
"""On one node, or cut into one part for each node."""


def check_layout(layout: str) -> None:
    """Raise ConfigError unless ``layout`` is one."""
    if layout not in LAYOUTS:
        raise ConfigError(f"layout is one of {', '.join(LAYOUTS)}", layout=layout)

"""Names from which those of several regions are made: of runs, locks and publications. Pure."""

from __future__ import annotations

from typing import Final

from smbox.errors import LimitError
from smbox.head import check_no_part_name
from smbox.memory.layout import NAME_NBYTES_MAX

ROOM_NBYTES: Final = 72
"""For what an algorithm appends: names of 128 bytes leave it."""


def check_prefix(name: str, room_nbytes: int = ROOM_NBYTES) -> None:
    """Check the prefix of names of regions, before the first region is made.

    Args:
        name: the prefix.
        room_nbytes: bytes of UTF-8 that are appended at most.

    Raises:
        TypeError: it is no str.
        LimitError: it is empty, or leaves no such room.
        ConfigError: it holds characters that cannot be printed, or is the name of a part of a
            striped region.
    """
    check_no_part_name(name)
    nbytes, nbytes_max = len(name.encode()), NAME_NBYTES_MAX - room_nbytes
    if nbytes > nbytes_max:
        raise LimitError(
            f"a name from which names of regions are made has 1 to {nbytes_max} bytes of UTF-8",
            name_nbytes=nbytes,
        )

"""Sizes of a node's memory: as people write them, and which of them can be. Pure."""

from __future__ import annotations

import re
from typing import Final

from smbox.address import OFFSET_BITS
from smbox.errors import ConfigError

MEMORY_NBYTES_MIN: Final = 1 << 20
MEMORY_NBYTES_MAX: Final = 1 << OFFSET_BITS  # as many as a node has addresses

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(?:([KMGT])(i?))?B?", re.IGNORECASE)
_POWER = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4}


def parse_size(text: str) -> int:
    """Read a number of bytes: ``"8GiB"``, ``"500MB"``, ``"64k"``, ``"4096"``.

    ``KiB`` counts in 1024, ``KB`` and ``K`` in 1000, as disks and networks do.

    Raises:
        ConfigError: not a size.
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ConfigError("not a size; write for example 8GiB or 500MB", size=text)
    number, unit, binary = match.groups(default="")
    return int(float(number) * (1024 if binary else 1000) ** _POWER[unit.upper()])


def check_memory(nbytes: int) -> int:
    """Return the bytes of a node's memory, if a node can have so many.

    Raises:
        ConfigError: too few or too many.
    """
    if not MEMORY_NBYTES_MIN <= nbytes <= MEMORY_NBYTES_MAX:
        raise ConfigError(
            "a node has at least 1 MiB, and no more memory than there are addresses",
            memory_nbytes=nbytes,
        )
    return nbytes

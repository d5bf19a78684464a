"""Names of regions, and the head of a striped one, which says where its parts lie. Pure.

The head has the striped region's own name and is an ordinary region of bytes, so that two
creators of one name race for it as for any other region. Its contents never change:

    magic, u32 length, then as many bytes of msgpack (the fields of Head), zeros up to a page
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from smbox.errors import ConfigError, LimitError
from smbox.memory.layout import NAME_NBYTES_MAX
from smbox.memory.region_header import RegionDescription, check_name

MAGIC: Final = b"smbox.striped.1\n"
UNIT_NBYTES: Final = 4096
DTYPE: Final = "uint8"
ROOM_NBYTES: Final = 72
"""For what an algorithm appends to a prefix: names of 128 bytes leave it."""

_PART: Final = re.compile(r".+#[0-9a-f]{12}([0-9a-f]{4})", re.DOTALL)
_LENGTH_NBYTES: Final = 4
_BEGIN: Final = len(MAGIC) + _LENGTH_NBYTES


class HeadPart(msgspec.Struct, frozen=True):
    """One part, as the head names it.

    Attributes:
        node: id of its node.
        uuid: of the memory that it lies in.
        address: of its first byte.
        first_row: of the whole region, along axis 0.
        rows: how many.
    """

    node: int
    uuid: bytes
    address: int
    first_row: int
    rows: int


class Head(msgspec.Struct, frozen=True):
    """What a striped region is, and where.

    Attributes:
        dtype: name of the element type.
        shape: of the whole.
        consistency: one of ``layout.Consistency``.
        part_name: name of the part on each node.
        parts: by row.
        layout: "striped"; there is no other.
    """

    dtype: str
    shape: tuple[int, ...]
    consistency: int
    part_name: str
    parts: tuple[HeadPart, ...]
    layout: str = "striped"


def new_part_name(name: str, home: int) -> str:
    """Name the parts of a region: never as others of its name, and with the head's node."""
    return f"{name}#{secrets.token_hex(6)}{home:04x}"


def home_of_part(name: str) -> int | None:
    """Return the id of the node where the head of a part is, or None: no name of a part."""
    found = _PART.fullmatch(name)
    return None if found is None else int(found[1], 16)


def part_name_in(name: str) -> str | None:
    """Return the name of the part that a region of this name is, or is a state of, or None."""
    return next(
        (n for n in (name, name.rpartition("/")[0]) if home_of_part(n) is not None), None
    )


def check_no_part_name(name: str) -> None:
    """Check a name that a caller chose for a region; ``smbox gc`` frees parts and their states.

    Raises:
        TypeError, LimitError: as ``check_name``.
        ConfigError: as ``check_name``, or it is a name of parts or of their states.
    """
    check_name(name)
    if part_name_in(name) is not None:
        raise ConfigError(
            "names with # and 16 hexadecimal digits at the end, or before the last /, are of"
            " parts of striped regions",
            name=name,
        )


def check_prefix(name: str, room_nbytes: int = ROOM_NBYTES) -> None:
    """Check a name from which those of several regions are made, before the first is made.

    Args:
        name: of a run, a lock or a publication: the prefix.
        room_nbytes: bytes of UTF-8 that are appended at most.

    Raises:
        TypeError, ConfigError: as ``check_no_part_name``.
        LimitError: it is empty, or leaves no such room.
    """
    check_no_part_name(name)
    nbytes, nbytes_max = len(name.encode()), NAME_NBYTES_MAX - room_nbytes
    if nbytes > nbytes_max:
        raise LimitError(
            f"a name from which names of regions are made has 1 to {nbytes_max} bytes of UTF-8",
            name_nbytes=nbytes,
        )


def read(info: RegionDescription, get: Callable[[int], NDArray[np.uint8]]) -> Head | None:
    """Read a region if it is a head; None: it is another one, of which a page is read at most.

    Args:
        info: of the region.
        get: returns as many of its first bytes, ``u8[n]``.

    Raises:
        ConfigError: it is a head that was overwritten.
    """
    is_bytes = info.dtype.name == DTYPE and len(info.shape) == 1
    if not is_bytes or info.shape[0] == 0 or info.shape[0] % UNIT_NBYTES:
        return None
    page = get(UNIT_NBYTES)
    if not page.tobytes().startswith(MAGIC):
        return None
    return _decode(page if info.shape[0] == UNIT_NBYTES else get(info.shape[0]))


def encode(head: Head) -> NDArray[np.uint8]:
    """Return the contents of a head's region, ``u8[k * 4096]``."""
    body = msgspec.msgpack.encode(head)
    text = MAGIC + len(body).to_bytes(_LENGTH_NBYTES, "little") + body
    array = np.zeros(-(-len(text) // UNIT_NBYTES) * UNIT_NBYTES, np.uint8)
    array[: len(text)] = np.frombuffer(text, np.uint8)
    return array


def _decode(contents: NDArray[np.uint8]) -> Head:
    text = contents.tobytes()
    limit = _BEGIN + int.from_bytes(text[len(MAGIC) : _BEGIN], "little")
    try:
        return msgspec.msgpack.decode(text[_BEGIN:limit], type=Head)
    except msgspec.DecodeError as error:
        raise ConfigError(
            "the head of a striped region was overwritten: free it on its node"
            " (box.home_of(name).free(info)), then its parts (smbox gc --address)"
        ) from error

"""Rules for names of regions; heads, the regions that list the parts of striped ones. Pure.

A head has the striped region's name and is an ordinary region of bytes. So two clients that
create the same name compete for it as for any other region. Its contents never change:

    magic, u32 length, that many bytes of msgpack (the fields of Head), zeros up to a page
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from smbox.errors import ConfigError, LayoutMismatchError, LimitError
from smbox.memory.layout import NAME_NBYTES_MAX, Consistency, align
from smbox.memory.region_header import RegionDescription, check_name

MAGIC: Final = b"smbox.striped.1\n"
UNIT_NBYTES: Final = 4096
DTYPE: Final = "uint8"
SUFFIX_NBYTES_MAX: Final = 72
"""Bytes that an algorithm may append to a prefix; the prefix then has up to 128 bytes."""

_PART: Final = re.compile(r".+#[0-9a-f]{12}([0-9a-f]{4})", re.DOTALL)
_LENGTH_NBYTES: Final = 4
_BEGIN: Final = len(MAGIC) + _LENGTH_NBYTES


class HeadPart(msgspec.Struct, frozen=True):
    """One part, as the head lists it.

    Attributes:
        node: id of its node.
        uuid: uuid of its memory.
        address: global address of its first byte.
        first_row: its first row in the whole region, along axis 0.
        rows: number of rows.
    """

    node: int
    uuid: bytes
    address: int
    first_row: int
    rows: int


class Head(msgspec.Struct, frozen=True):
    """The description of a striped region.

    Attributes:
        dtype: name of the element type.
        shape: shape of the whole region.
        consistency: a value of ``layout.Consistency``.
        part_name: name of the part on each node.
        parts: the parts, in order of rows.
        layout: "striped", the only value.
    """

    dtype: str
    shape: tuple[int, ...]
    consistency: int
    part_name: str
    parts: tuple[HeadPart, ...]
    layout: str = "striped"


def new_part_name(name: str, home: int) -> str:
    """Return a unique name for a region's parts; it ends with the id of the head's node."""
    return name + f"#{secrets.token_hex(6)}{home:04x}"


def home_of_part(name: str) -> int | None:
    """Return the node id of a part's head, or None if this is not the name of a part."""
    found = _PART.fullmatch(name)
    return None if found is None else int(found[1], 16)


def part_name_in(name: str) -> str | None:
    """Return the name of the part that a region is, or is a state of; None: it is neither."""
    return next(
        (n for n in (name, name.rpartition("/")[0]) if home_of_part(n) is not None), None
    )


def check_no_part_name(name: str) -> None:
    """Check a name that a caller chose; ``smbox gc`` frees parts and their states by name.

    Raises:
        TypeError, LimitError: as ``check_name``.
        ConfigError: as ``check_name``, or the name is reserved for parts or their states.
    """
    check_name(name)
    if part_name_in(name) is not None:
        raise ConfigError(
            "names with # and 16 hexadecimal digits at the end, or before the last /, are"
            " reserved for parts of striped regions",
            name=name,
        )


def check_prefix(name: str, suffix_nbytes: int = SUFFIX_NBYTES_MAX) -> None:
    """Check the common prefix of several names before any of these regions is created.

    Args:
        name: the prefix: the name of a run, a lock or a publication.
        suffix_nbytes: most bytes of UTF-8 that are appended.

    Raises:
        TypeError, ConfigError: as ``check_no_part_name``.
        LimitError: the prefix is empty or too long.
    """
    check_no_part_name(name)
    nbytes, nbytes_max = len(name.encode()), NAME_NBYTES_MAX - suffix_nbytes
    if nbytes > nbytes_max:
        raise LimitError(
            f"a name that others are derived from has 1 to {nbytes_max} bytes of UTF-8",
            name_nbytes=nbytes,
        )


def read(info: RegionDescription, get: Callable[[int], NDArray[np.uint8]]) -> Head | None:
    """Return the head in a region; None: it holds none. Then at most a page of it is read.

    Args:
        info: description of the region.
        get: returns the first n bytes of the region, ``u8[n]``.

    Raises:
        ConfigError: the region is a head that was overwritten.
    """
    is_bytes = info.dtype.name == DTYPE and len(info.shape) == 1
    if not is_bytes or info.shape[0] == 0 or info.shape[0] % UNIT_NBYTES:
        return None
    page = get(UNIT_NBYTES)
    if not page.tobytes().startswith(MAGIC):
        return None
    text = (page if info.shape[0] == UNIT_NBYTES else get(info.shape[0])).tobytes()
    limit = _BEGIN + int.from_bytes(text[len(MAGIC) : _BEGIN], "little")
    try:
        return msgspec.msgpack.decode(text[_BEGIN:limit], type=Head)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ConfigError(
            "the head of a striped region was overwritten: free it on its node"
            " (box.home_of(name).free(info)), then its parts (smbox gc --address)"
        ) from error


def check_one_node(head: Head | None, name: str) -> None:
    """Raise ConfigError if a region that a box on one node attaches is striped: has a head."""
    if head is not None:
        raise ConfigError(
            "this region is striped over several nodes: connect to all of them, for example"
            " by SMBOX_ADDRESS=tcp://a:7070,tcp://b:7070",
            region=name,
            nodes=[part.node for part in head.parts],
        )


def check_single(head: Head | None, wanted: RegionDescription) -> None:
    """Raise LayoutMismatchError if the region of a wanted name is striped: has a head."""
    if head is not None:
        raise LayoutMismatchError(
            "a region of this name is striped over several nodes: take another name, or"
            " layout='striped' on a box over all of them",
            name=wanted.name,
            layout=head.layout,
            shape=list(head.shape),
            dtype=head.dtype,
            consistency=Consistency.NAMES[head.consistency],
            wanted_layout="single",
            wanted_shape=list(wanted.shape),
            wanted_dtype=wanted.dtype.name,
            wanted_consistency=Consistency.NAMES[wanted.consistency],
        )


def encode(head: Head) -> NDArray[np.uint8]:
    """Return the contents of a head's region, ``u8[k * 4096]``."""
    body = msgspec.msgpack.encode(head)
    text = MAGIC + len(body).to_bytes(_LENGTH_NBYTES, "little") + body
    array = np.zeros(align(len(text), UNIT_NBYTES), np.uint8)
    array[: len(text)] = np.frombuffer(text, np.uint8)
    return array

"""Descriptions of regions: header page, limits of names and shapes, equal layouts."""

from __future__ import annotations

import math
from typing import Final

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from smbox import dtypes
from smbox.address import OFFSET_BITS
from smbox.dtypes import DType
from smbox.errors import ConfigError, LayoutMismatchError, LimitError, SegmentError
from smbox.memory import layout
from smbox.memory.layout import (
    NAME_NBYTES_MAX,
    SHAPE_NDIM_MAX,
    Consistency,
    RegionHeader,
    RegionKind,
)

NBYTES_LIMIT: Final = 1 << (OFFSET_BITS - 1)
"""Half of the address space: the rest is for the header and the stripe table."""

_TOKEN: Final = slice(RegionHeader.TOKEN_LOW, RegionHeader.TOKEN_HIGH + 1)


class RegionDescription(Struct, frozen=True):
    """The name, the type and the layout of a region.

    Attributes:
        name: unique among the node's regions of this kind; at most 200 bytes of UTF-8.
        dtype: type of the elements.
        shape: at most 8 dimensions; ``()`` is one element.
        kind: a value of ``RegionKind``.
        consistency: a value of ``Consistency``.
    """

    name: str
    dtype: DType
    shape: tuple[int, ...]
    kind: int = RegionKind.ARRAY
    consistency: int = Consistency.STRIPE

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of data."""
        return self.size * self.dtype.itemsize


class RegionSpec(RegionDescription, frozen=True):
    """The description in a region's header.

    Attributes:
        token: the creator's 16 bytes, which identify a repeated request, or zeros.
    """

    token: bytes = bytes(16)


def write(page: NDArray[np.uint8], spec: RegionSpec, address: int, state: int) -> None:
    """Fill the header page ``u8[4096]`` of a region; the magic word is written last."""
    words = page.view(np.uint64)
    name = spec.name.encode()
    words[RegionHeader.FORMAT] = layout.FORMAT
    words[RegionHeader.STATE] = state
    words[RegionHeader.ADDRESS] = address
    words[RegionHeader.DATA_NBYTES] = spec.nbytes
    words[RegionHeader.KIND] = spec.kind
    words[RegionHeader.CONSISTENCY] = spec.consistency
    words[RegionHeader.DTYPE] = spec.dtype.code
    words[RegionHeader.NDIM] = len(spec.shape)
    words[RegionHeader.SHAPE : RegionHeader.SHAPE + len(spec.shape)] = spec.shape
    words[_TOKEN] = np.frombuffer(spec.token, np.uint64)
    words[RegionHeader.NAME_LENGTH] = len(name)
    page[RegionHeader.NAME_AT : RegionHeader.NAME_AT + len(name)] = list(name)
    words[RegionHeader.MAGIC] = RegionHeader.MAGIC_VALUE


def read(page: NDArray[np.uint8]) -> RegionSpec:
    """Read the header page of a region.

    Raises:
        SegmentError: this is not a region of this format, or its numbers are inconsistent.
        ConfigError: this release does not know its consistency.
    """
    if page.nbytes < RegionHeader.NBYTES:
        raise SegmentError("this region is damaged: it is too short", nbytes=page.nbytes)
    words = [int(word) for word in page.view(np.uint64)[: RegionHeader.WORDS]]
    if words[RegionHeader.MAGIC] != RegionHeader.MAGIC_VALUE:
        raise SegmentError("this segment is not a region of smbox")
    if words[RegionHeader.FORMAT] != layout.FORMAT:
        raise SegmentError(
            "this region has another format; use the smbox release that made it",
            format=words[RegionHeader.FORMAT],
            known=layout.FORMAT,
        )
    ndim, length = words[RegionHeader.NDIM], words[RegionHeader.NAME_LENGTH]
    if ndim > SHAPE_NDIM_MAX or length > NAME_NBYTES_MAX:
        raise SegmentError("the header of the region is damaged", ndim=ndim, name_nbytes=length)
    spec = RegionSpec(
        name=_decoded(page[RegionHeader.NAME_AT : RegionHeader.NAME_AT + length]),
        dtype=dtypes.by_code(words[RegionHeader.DTYPE]),
        shape=tuple(words[RegionHeader.SHAPE : RegionHeader.SHAPE + ndim]),
        kind=words[RegionHeader.KIND],
        consistency=words[RegionHeader.CONSISTENCY],
        token=page.view(np.uint64)[_TOKEN].tobytes(),
    )
    if spec.nbytes != words[RegionHeader.DATA_NBYTES]:
        raise SegmentError("this region's header is damaged", name=spec.name)
    check_consistency(spec)
    return spec


def _decoded(name: NDArray[np.uint8]) -> str:
    try:
        return name.tobytes().decode()
    except UnicodeDecodeError as error:
        raise SegmentError("this region's header is damaged: its name is not UTF-8") from error


def check_limits(region: RegionDescription) -> None:
    """Check the name, the dimensions and the size of a region.

    Raises:
        LimitError: the name is empty or too long, there are too many dimensions, or the region
            is larger than the address space.
        ConfigError: the name has characters that cannot be printed.
    """
    check_name(region.name)
    if len(region.shape) > SHAPE_NDIM_MAX:
        raise LimitError(
            f"a region has at most {SHAPE_NDIM_MAX} dimensions", shape=list(region.shape)
        )
    extent = math.prod(max(length, 1) for length in region.shape)  # as numpy checks it
    if extent * region.dtype.itemsize >= NBYTES_LIMIT:
        raise LimitError("the region exceeds the address space", shape=list(region.shape))


def check_consistency(region: RegionDescription) -> None:
    """Check that this release knows the consistency of a region.

    Raises:
        ConfigError: it does not.
    """
    if region.consistency not in Consistency.NAMES:
        raise ConfigError(
            f"consistency is one of {', '.join(Consistency.NAMES.values())}",
            name=region.name,
            consistency=region.consistency,
        )


def check_name(name: str) -> None:
    """Check the name of a region; raises as ``check_limits``, or TypeError."""
    if not isinstance(name, str):
        raise TypeError(f"a region's name is a str, not {type(name).__name__}")
    nbytes = len(name.encode(errors="surrogatepass"))
    if not 0 < nbytes <= NAME_NBYTES_MAX:
        raise LimitError(
            f"a region's name has 1 to {NAME_NBYTES_MAX} bytes of UTF-8", name_nbytes=nbytes
        )
    if not name.isprintable():
        raise ConfigError("a region's name has printable characters only", name=ascii(name))


def check_same_layout(found: RegionDescription, wanted: RegionDescription) -> None:
    """Check that an existing region has the wanted layout.

    Raises:
        LayoutMismatchError: shape, dtype or consistency differ.
    """
    have = (found.shape, found.dtype, found.consistency)
    if have != (wanted.shape, wanted.dtype, wanted.consistency):
        raise LayoutMismatchError(
            "a region of this name exists with another layout: take another name, or free it"
            " (smbox rm)",
            name=found.name,
            shape=list(found.shape),
            dtype=found.dtype.name,
            consistency=Consistency.NAMES[found.consistency],
            wanted_shape=list(wanted.shape),
            wanted_dtype=wanted.dtype.name,
            wanted_consistency=Consistency.NAMES[wanted.consistency],
        )

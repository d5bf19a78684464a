"""The first page of a region's segment, as a value: what the region is called and holds."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from smbox import dtypes
from smbox.dtypes import DType
from smbox.errors import SegmentError
from smbox.memory import layout
from smbox.memory.layout import Consistency, RegionHeader, RegionKind
from smbox.memory.region_limits import check_consistency

_LOW_WORD: Final = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class RegionSpec:
    """What a region is.

    Attributes:
        name: unique among the regions of its kind on a node; at most 200 UTF-8 bytes.
        dtype: type of its elements.
        shape: at most 8 dimensions; ``()`` is one element.
        kind: a value of ``RegionKind``.
        consistency: a value of ``Consistency``.
        token: the creator's 128-bit token, or 0.
    """

    name: str
    dtype: DType
    shape: tuple[int, ...]
    kind: int = RegionKind.ARRAY
    consistency: int = Consistency.STRIPE
    token: int = 0

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of data."""
        return self.size * self.dtype.itemsize


def write(page: NDArray[np.uint8], spec: RegionSpec, address: int, state: int) -> None:
    """Fill the header page ``u8[4096]`` of a region; the magic word goes last."""
    words = page.view(np.uint64)
    name = spec.name.encode()
    words[RegionHeader.FORMAT] = layout.FORMAT
    words[RegionHeader.STATE] = state
    words[RegionHeader.ADDRESS] = address
    words[RegionHeader.DATA_NBYTES] = spec.nbytes
    words[RegionHeader.STRIPE_NBYTES] = layout.STRIPE_NBYTES
    words[RegionHeader.STRIPE_COUNT] = layout.stripe_count(spec.nbytes)
    words[RegionHeader.DATA_OFFSET] = layout.data_offset(spec.nbytes)
    words[RegionHeader.KIND] = spec.kind
    words[RegionHeader.CONSISTENCY] = spec.consistency
    words[RegionHeader.DTYPE] = spec.dtype.code
    words[RegionHeader.NDIM] = len(spec.shape)
    words[RegionHeader.SHAPE : RegionHeader.SHAPE + len(spec.shape)] = spec.shape
    words[RegionHeader.TOKEN_LOW] = spec.token & _LOW_WORD
    words[RegionHeader.TOKEN_HIGH] = spec.token >> 64
    words[RegionHeader.NAME_LENGTH] = len(name)
    page[RegionHeader.NAME_AT : RegionHeader.NAME_AT + len(name)] = list(name)
    words[RegionHeader.MAGIC] = RegionHeader.MAGIC_VALUE


def read(page: NDArray[np.uint8]) -> RegionSpec:
    """Read the header page of a region.

    Raises:
        SegmentError: this is no region of this format, or its numbers contradict each other.
        ConfigError: its consistency is unknown to this release.
    """
    words = [int(word) for word in page.view(np.uint64)[: RegionHeader.WORDS]]
    if words[RegionHeader.MAGIC] != RegionHeader.MAGIC_VALUE:
        raise SegmentError("this segment is no smbox region")
    if words[RegionHeader.FORMAT] != layout.FORMAT:
        raise SegmentError(
            "this region has another format; use the smbox release that made it",
            format=words[RegionHeader.FORMAT],
            known=layout.FORMAT,
        )
    ndim, length = words[RegionHeader.NDIM], words[RegionHeader.NAME_LENGTH]
    if ndim > layout.SHAPE_NDIM_MAX or length > layout.NAME_NBYTES_MAX:
        raise SegmentError(
            "the header of this region is damaged", ndim=ndim, name_nbytes=length
        )
    spec = RegionSpec(
        name=bytes(page[RegionHeader.NAME_AT : RegionHeader.NAME_AT + length]).decode(),
        dtype=dtypes.by_code(words[RegionHeader.DTYPE]),
        shape=tuple(words[RegionHeader.SHAPE : RegionHeader.SHAPE + ndim]),
        kind=words[RegionHeader.KIND],
        consistency=words[RegionHeader.CONSISTENCY],
        token=words[RegionHeader.TOKEN_HIGH] << 64 | words[RegionHeader.TOKEN_LOW],
    )
    if spec.nbytes != words[RegionHeader.DATA_NBYTES]:
        raise SegmentError("this region's header is damaged", name=spec.name)
    check_consistency(spec)
    return spec

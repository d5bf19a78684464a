"""What any region may be: asked by clients before they send, and by the node whoever sends."""

from __future__ import annotations

import math
from typing import Final, Protocol

from smbox.dtypes import DType
from smbox.errors import ConfigError, LayoutMismatchError, LimitError
from smbox.memory.layout import NAME_NBYTES_MAX, OFFSET_BITS, SHAPE_NDIM_MAX, Consistency

NBYTES_LIMIT: Final = 1 << (OFFSET_BITS - 1)
"""Half of the address space: a region has a header and a stripe table besides its data."""


class Described(Protocol):
    """A region as its creator, its header or a client describes it."""

    @property
    def name(self) -> str:
        """The name."""

    @property
    def dtype(self) -> DType:
        """Type of the elements."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Row-major."""

    @property
    def consistency(self) -> int:
        """A value of ``Consistency``."""


def check_limits(region: Described) -> None:
    """Check that a region can have this name and this shape.

    Raises:
        LimitError: the name is empty or longer than a header holds, there are too many
            dimensions, or the region would have no address.
        ConfigError: the name holds characters that cannot be printed.
    """
    check_name(region.name)
    if len(region.shape) > SHAPE_NDIM_MAX:
        raise LimitError(
            f"a region has at most {SHAPE_NDIM_MAX} dimensions", shape=list(region.shape)
        )
    extent = math.prod(max(length, 1) for length in region.shape)  # numpy counts so, too
    if extent * region.dtype.itemsize >= NBYTES_LIMIT:
        raise LimitError("a region of this size has no address", shape=list(region.shape))


def check_consistency(region: Described) -> None:
    """Check that a region's consistency is one that this release knows.

    Raises:
        ConfigError: it is not.
    """
    if region.consistency not in Consistency.NAMES:
        raise ConfigError(
            f"consistency is one of {', '.join(Consistency.NAMES.values())}",
            name=region.name,
            consistency=region.consistency,
        )


def check_name(name: str) -> None:
    """Check the name of a region; raises as ``check_limits``, and TypeError."""
    if not isinstance(name, str):
        raise TypeError(f"a region's name is a str, not {type(name).__name__}")
    nbytes = len(name.encode(errors="surrogatepass"))
    if not 0 < nbytes <= NAME_NBYTES_MAX:
        raise LimitError(
            f"a region's name has 1 to {NAME_NBYTES_MAX} bytes of UTF-8", name_nbytes=nbytes
        )
    if not name.isprintable():
        raise ConfigError("a region's name holds printable characters only", name=ascii(name))


def check_same_layout(found: Described, wanted: Described) -> None:
    """Check that an existing region is what somebody else would have created.

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

"""Vector: the verbs by which regions of one node compute with each other; no element travels.

For algorithms whose vectors stay at the memory: ``accumulate_from`` copies (``op="replace"``)
and adds a multiple of another region (BLAS: axpy), ``scale`` multiplies, ``dot`` sums products.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterable
from typing import Final

import numpy as np
from msgspec.structs import astuple

from smbox.errors import ConfigError, LayoutMismatchError
from smbox.handle import Handle
from smbox.memory.kernels import KernelCode, scale_of
from smbox.memory.layout import STRIPE_NBYTES
from smbox.paths.pair import PathPair
from smbox.paths.readings import Product
from smbox.paths.work import Copying, Operation, Piece
from smbox.verbs import Extent, kernel_of
from smbox.wire.ops import count

NOTHING: Final = np.empty(0, np.uint8)
"""The source of a change that brings no operand."""


class Vector:
    """The part of a region that computes with other regions.

    Attributes:
        extent: which region, and which part of it.
    """

    __slots__ = ("_paths", "extent")

    _paths: PathPair
    extent: Extent

    def accumulate_from(
        self,
        source: Vector,
        scale: float = 1.0,
        op: str = "sum",
        *,
        timeout_s: float | None = None,
    ) -> None:
        """Combine another region's contents into these, at the node: no data travels.

        Args:
            source: a region (or slice) of this node, dtype and size; read stripe by stripe.
                Of a striped region, another one whose rows lie on the same nodes.
            scale: as in ``accumulate``.
            op: as in ``accumulate``; "replace" copies.
            timeout_s: see ``smbox.region``.

        Raises:
            LayoutMismatchError: another dtype or size; nothing was sent.
            ConfigError: the two do not lie on the same nodes; nothing was sent.
        """
        self._paths.finish(self._copying(source, scale, op), timeout_s)

    def accumulate_from_nb(
        self, source: Vector, scale: float = 1.0, op: str = "sum"
    ) -> Handle[None]:
        """Begin an ``accumulate_from``."""
        copying = self._copying(source, scale, op)
        return self._paths.begin(copying)

    def scale(self, factor: float, *, timeout_s: float | None = None) -> None:
        """Multiply the contents by ``factor``; atomic by stripe, not of bools.

        Args:
            factor: rounded to the region's type; whole in a region of integers, which wraps.
            timeout_s: see ``smbox.region``.
        """
        self._paths.finish(self._scaled(factor), timeout_s)

    def scale_nb(self, factor: float) -> Handle[None]:
        """Begin a ``scale``."""
        return self._paths.begin(self._scaled(factor))

    def dot(self, other: Vector, *, timeout_s: float | None = None) -> float:
        """Sum the products of these elements and another region's, in float64, at the node.

        The order of the sum is fixed: of the same contents it is the same to the bit, on every
        path and processor. Each stripe of either region is read as between two commits.

        Args:
            other: as the source of ``accumulate_from``; this region itself gives the square
                of its norm.
            timeout_s: see ``smbox.region``.

        Raises:
            LayoutMismatchError: another dtype or size; nothing was sent.
            ConfigError: no floats, or not on the same nodes; nothing was sent.
        """
        product, total = self._product(other)
        self._paths.finish(product, timeout_s)
        return total()

    def dot_nb(self, other: Vector) -> Handle[float]:
        """Begin a ``dot``."""
        return self._paths.begin(*self._product(other))

    def _copying(self, source: Vector, scale: float, op: str) -> Copying:
        extent, other = self.extent, _extent(source)
        kernel = kernel_of(extent.info, op, scale)
        for piece, beside in _beside(extent, other):
            _check_apart(piece, beside)
        operation = _without_operand(extent, "accumulate_from", kernel, scale)
        return Copying(*astuple(operation), other=other.info, other_first=other.first)

    def _scaled(self, factor: float) -> Operation:
        scale_of(KernelCode.SCALE, self.extent.info.dtype, factor)
        return _without_operand(self.extent, "scale", KernelCode.SCALE, factor)

    def _product(self, other: Vector) -> tuple[Product, Callable[[], float]]:
        """Describe a product of two regions; return also what adds its sums."""
        extent, source = self.extent, _extent(other)
        pieces = [piece for piece, _ in _beside(extent, source)]
        if extent.info.dtype.kind != "float":
            raise ConfigError(
                "only regions of floats have a dot product: get the contents and compute it",
                region=extent.info.name,
                dtype=extent.info.dtype.name,
            )
        ends = np.cumsum([count(each.first, each.limit, STRIPE_NBYTES) for each in pieces])
        sums = np.zeros(ends[-1])
        span = extent.first, extent.limit
        product = Product(extent.info, *span, source.info, source.first, sums)

        def total() -> float:
            return _total(_total(part.tolist()) for part in np.split(sums, ends[:-1]))

        return product, total


def _extent(source: object) -> Extent:
    """Return what a verb takes as another region; TypeError: it is none."""
    if not isinstance(source, Vector):
        raise TypeError(f"the source is a region, not {type(source).__name__}")
    return source.extent


def _without_operand(extent: Extent, op: str, kernel: KernelCode, scale: float) -> Operation:
    return Operation(extent.info, op, kernel, scale, extent.first, extent.limit, NOTHING)


def _check_apart(piece: Piece, source: Piece) -> None:
    """Refuse a source that would be read where this change has already written."""
    first, limit = piece.first, piece.limit
    is_shifted = source.info.address == piece.info.address and source.first != first
    is_long = first // STRIPE_NBYTES != (limit - 1) // STRIPE_NBYTES
    if is_shifted and is_long and source.first < limit and first < source.limit:
        raise ConfigError(
            "source and target overlap over several stripes: change from a copy",
            region=piece.info.name,
        )


def _beside(extent: Extent, source: Extent) -> list[tuple[Piece, Piece]]:
    """Pair the pieces of two regions that nodes can compute with, element by element.

    Raises:
        LayoutMismatchError: another dtype or size.
        ConfigError: they lie on other nodes.
    """
    if (source.info.dtype, source.limit - source.first) != (
        extent.info.dtype,
        extent.limit - extent.first,
    ):
        raise LayoutMismatchError(
            "both regions need the same dtype and size",
            region=extent.info.name,
            source=source.info.name,
        )
    pieces = extent.info.pieces(extent.first, extent.limit)
    others = source.info.pieces(source.first, source.limit)
    if [_place(piece) for piece in pieces] != [_place(other) for other in others]:
        raise ConfigError(
            "both regions lie at one node, or the same rows of both on the same nodes: else"
            " get the one and accumulate it into the other",
            region=extent.info.name,
            source=source.info.name,
            nodes=[piece.info.address.node for piece in pieces],
            source_nodes=[other.info.address.node for other in others],
        )
    return list(zip(pieces, others, strict=True))


def _place(piece: Piece) -> tuple[bytes, int]:
    return piece.info.node_uuid, piece.nbytes


def _total(sums: Iterable[float]) -> float:
    """Add from left to right: ``sum`` of some Pythons compensates, and gives other bits."""
    return functools.reduce(operator.add, sums, 0.0)

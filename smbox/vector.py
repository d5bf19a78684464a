"""Vector: verbs that compute with several regions at the node, without sending their data.

For algorithms whose vectors stay in the memory: ``accumulate_from`` copies (``op="replace"``)
or adds a multiple of another region (BLAS: axpy), ``scale`` multiplies, ``dot`` sums products.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import Final

import numpy as np
from msgspec.structs import astuple

from smbox.errors import ConfigError, LayoutMismatchError
from smbox.handle import Handle
from smbox.memory.kernels import KernelCode, packed_scale
from smbox.memory.layout import STRIPE_NBYTES
from smbox.paths.requests import Copying, Operation, Piece, Product
from smbox.verbs import Extent, kernel_and_scale
from smbox.wire.ops import count

NOTHING: Final = np.empty(0, np.uint8)
"""The source of a change without an operand."""


class Vector(Extent):
    """The part of a region that computes with other regions."""

    __slots__ = ()

    def accumulate_from(
        self,
        source: Vector,
        scale: float = 1.0,
        op: str = "sum",
        *,
        timeout_s: float | None = None,
    ) -> None:
        """Combine another region's contents with these at the node; sends no data.

        Args:
            source: a region (or slice) of the same node, dtype and size; it is read stripe by
                stripe. For a striped region, a striped region whose rows are on the same nodes.
            scale: see ``accumulate``.
            op: see ``accumulate``; "replace" copies.
            timeout_s: see smbox.region.

        Raises:
            LayoutMismatchError: the dtypes or sizes differ; nothing was sent.
            ConfigError: the regions are on different nodes, or overlap over several stripes;
                nothing was sent.
            TypeError: the source is not a region; nothing was sent.
        """
        self._paths.finish(self._copying(source, scale, op), timeout_s)

    def accumulate_from_nb(
        self, source: Vector, scale: float = 1.0, op: str = "sum"
    ) -> Handle[None]:
        """Start an ``accumulate_from``."""
        return self._paths.begin(self._copying(source, scale, op))

    def scale(self, factor: float, *, timeout_s: float | None = None) -> None:
        """Multiply the contents by ``factor``; atomic per stripe, not for bools.

        Args:
            factor: rounded to the region's dtype. In a region of integers it is an integer, and
                products wrap around.
            timeout_s: see smbox.region.
        """
        self._paths.finish(self._scaled(factor), timeout_s)

    def scale_nb(self, factor: float) -> Handle[None]:
        """Start a ``scale``."""
        return self._paths.begin(self._scaled(factor))

    def dot(self, other: Vector, *, timeout_s: float | None = None) -> float:
        """Return the sum of the products with another region's elements, in float64.

        The node computes it. The order of the additions is fixed, so that the same contents
        give the same bits on every path and processor. Each stripe of both regions is read as
        it was between two commits.

        Args:
            other: a region as for ``accumulate_from``; this region itself gives the square of
                its norm.
            timeout_s: see smbox.region.

        Raises:
            LayoutMismatchError: the dtypes or sizes differ; nothing was sent.
            ConfigError: the dtype is not a float, or the regions are on different nodes;
                nothing was sent.
            TypeError: ``other`` is not a region; nothing was sent.
        """
        product, total = self._product(other)
        self._paths.finish(product, timeout_s)
        return total()

    def dot_nb(self, other: Vector) -> Handle[float]:
        """Start a ``dot``; the handle's result is what ``dot`` returns."""
        return self._paths.begin(*self._product(other))

    def _copying(self, source: Vector, scale: float, op: str) -> Copying:
        kernel, packed = kernel_and_scale(self.info, op, scale)
        for piece, beside in _pairs(self, source):
            _check_apart(piece, beside)
        operation = self._change("accumulate_from", kernel, packed)
        return Copying(*astuple(operation), other=source.info, other_first=source.first)

    def _scaled(self, factor: float) -> Operation:
        packed = packed_scale(KernelCode.SCALE, self.info.dtype, factor)
        return self._change("scale", KernelCode.SCALE, packed)

    def _change(self, op: str, kernel: KernelCode, scale: bytes) -> Operation:
        return Operation(self.info, op, kernel, scale, self.first, self.limit, NOTHING)

    def _product(self, other: Vector) -> tuple[Product, Callable[[], float]]:
        """Return the request for a dot product, and a function that adds up its sums."""
        pieces = [piece for piece, _ in _pairs(self, other)]
        if self.info.dtype.kind != "float":
            raise ConfigError(
                "only regions of floats have a dot product: get the contents and compute it",
                region=self.info.name,
                dtype=self.info.dtype.name,
            )
        sums = np.zeros(sum(count(each.first, each.limit, STRIPE_NBYTES) for each in pieces))
        span = self.first, self.limit
        product = Product(self.info, *span, other.info, other.first, sums)
        # From left to right: ``sum`` compensates in some Pythons, which gives other bits.
        return product, lambda: functools.reduce(operator.add, sums.tolist(), 0.0)


def _check_apart(piece: Piece, source: Piece) -> None:
    """Raise ConfigError if the change would overwrite parts of the source before it reads."""
    first, limit = piece.first, piece.limit
    is_shifted = source.info.address == piece.info.address and source.first != first
    is_long = first // STRIPE_NBYTES != (limit - 1) // STRIPE_NBYTES
    if is_shifted and is_long and source.first < limit and first < source.limit:
        raise ConfigError(
            "source and target overlap over several stripes: change from a copy",
            region=piece.info.name,
        )


def _pairs(extent: Extent, source: Extent) -> list[tuple[Piece, Piece]]:
    """Return the pieces of two regions, paired by node.

    Raises:
        LayoutMismatchError: the dtypes or sizes differ.
        ConfigError: the regions are on different nodes.
        TypeError: the source is not a region.
    """
    if not isinstance(source, Vector):
        raise TypeError(f"the source is a region, not {type(source).__name__}")
    nbytes = extent.limit - extent.first
    if (source.info.dtype, source.limit - source.first) != (extent.info.dtype, nbytes):
        raise LayoutMismatchError(
            "both regions need the same dtype and size",
            region=extent.info.name,
            source=source.info.name,
        )
    pieces = extent.info.pieces(extent.first, extent.limit)
    others = source.info.pieces(source.first, source.limit)
    places, other_places = (
        [(piece.info.node_uuid, piece.nbytes) for piece in each] for each in (pieces, others)
    )
    if places != other_places:
        raise ConfigError(
            "both regions must lie at one node, or the same rows of both on the same nodes:"
            " get the one and accumulate it into the other",
            region=extent.info.name,
            source=source.info.name,
            nodes=[piece.info.address.node for piece in pieces],
            source_nodes=[other.info.address.node for other in others],
        )
    return list(zip(pieces, others, strict=True))

"""Creation and change of regions in a test's own memory, one call for each."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from smbox.memory import orders
from smbox.memory.commit import run_orders
from smbox.memory.journal import Writer
from smbox.memory.layout import RegionState
from smbox.memory.mapped import Building, MappedRegion
from smbox.memory.orders import Block
from smbox.memory.region_header import RegionSpec
from smbox.testing.kernels import scale_bytes


def build(
    node: str,
    spec: RegionSpec,
    address: int,
    init: float | None = None,
    state: int = RegionState.LIVE,
) -> MappedRegion:
    """Create a region.

    Raises:
        OutOfMemoryError: too little memory is left; nothing was created.
    """
    building = Building(node, spec, address, init)
    try:
        while not building.step():
            pass
        return building.finish(state)
    except BaseException:
        building.abandon()
        raise


def done_of(writer: Writer) -> int:
    """Return the byte up to which the last order is committed."""
    return orders.order_outcome(writer.order)[0]


def commit(  # noqa: PLR0913 - the words of one order
    writer: Writer,
    regions: tuple[MappedRegion, ...],
    kernel: int,
    first: int,
    limit: int,
    source: NDArray[np.uint8],
    scale: float = 1,
    *,
    at: int | None = None,
    operand: int = 0,
    output: int = 0,
    output_to: NDArray[Any] | None = None,
    parameters: NDArray[np.float64] | None = None,
    channel: Block | None = None,
    number: int = 0,
) -> None:
    """Change the bytes ``[first, limit)`` of a region, stripe by stripe, each one a commit.

    After an error, ``done_of(writer)`` is the byte up to which all is committed and answered.

    Args:
        writer: the calling thread's writer.
        regions: the region, and the regions of an optimizer's state.
        kernel: a ``KernelCode`` or ``OptimizerCode``.
        first: first byte of the region's data, at an element.
        limit: byte behind the last.
        source: the operand, C-contiguous bytes.
        scale: factor of SUM, moving_rate of ELASTIC; see ``testing.kernels.native_scale``.
        at: byte to start from, all before is done; None: ``first``.
        operand: dtype code of the source; 0: the region's.
        output: kind of answer, an ``orders.Output``.
        output_to: receives the answer, as many elements as the range has.
        parameters: an optimizer's, ``f64[4]``.
        channel: at the node, on whose behalf.
        number: of the first stripe's commit; the next stripe's is the next.

    Raises:
        StripeBusy, RegionFreedError: the stripe at ``done_of(writer)`` is held, or was freed.
        LayoutMismatchError: kernel, range and source do not fit each other; nothing changed.
        SegmentError: a dead writer's journal is damaged; the stripe stays open.
    """
    extents = regions[0].extents
    if len(regions) > 1:
        extents = orders.extents_of([each.block for each in regions])
    what = kernel, operand or regions[0].dtype_code, output, extents, first, limit
    given = orders.address_of(source), source.nbytes, scale_bytes(scale)
    parameters_at = 0 if parameters is None else orders.address_of(parameters)
    to = 0 if output_to is None else orders.address_of(output_to)
    whose = channel.address if channel else 0, number, first if at is None else at
    orders.write_order(writer.order.bytes, 0, *what, *given, parameters_at, to, *whose)
    run_orders(writer, writer.order, [regions], limit - first)

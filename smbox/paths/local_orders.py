"""An operation on mapped memory, as an order to the native library."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from smbox.errors import ConfigError
from smbox.memory.kernels import KernelCode, native_scale
from smbox.memory.mapped import MappedRegion
from smbox.memory.orders import ORDER_NBYTES, Back, Block, address_of, write_order
from smbox.paths.work import Operation


def pack(
    block: Block,
    place: int,
    region: MappedRegion,
    operation: Operation,
    at: int,
    extents: bytes = b"",
    parameters: NDArray[np.float64] | None = None,
) -> int:
    """Write an operation, to be kept as long as it may run, as the order of index ``place``.

    Args:
        block: of at least ``place + 1`` orders.
        place: which one.
        region: that is changed.
        operation: what is done.
        at: byte from which on it is still to be done.
        extents: the region and its siblings; empty: it has none.
        parameters: an optimizer's, ``f64[4]``.

    Returns:
        How many bytes its range has.
    """
    _, _, kernel, scale, first, limit, source, operand, sink, _, _ = operation
    if scale == 1:
        scale = region.unit_scale
    elif type(scale) is not float or type(region.unit_scale) is int:  # C rounds floats
        scale = native_scale(KernelCode(kernel), region.spec.dtype, scale)
    address = address_of(source)
    write_order[type(scale)](
        block.bytes,
        place * ORDER_NBYTES,
        kernel,
        operand or region.dtype_code,
        0 if sink is None else sink.back,
        extents or region.extents,
        first,
        limit,
        address,
        source.nbytes,
        scale,
        0 if parameters is None else address_of(parameters),
        0 if sink is None else sink.address(operation, address),
        0,
        0,
        at,
    )
    return limit - first


def unaliased(region: MappedRegion, operation: Operation) -> Operation:
    """Copy an operand that lies in the region itself: parts of it change before their turn.

    Raises:
        ConfigError: an exchange would move it, and write to the region outside a commit.
    """
    if not region.may_hold(operation.source):
        return operation
    if operation.sink is not None and operation.sink.back == Back.MOVED:
        raise ConfigError(
            "x lies in the region it is exchanged with: exchange a copy, or pass delta=",
            name=region.spec.name,
        )
    return operation._replace(source=operation.source.copy())

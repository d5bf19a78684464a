"""Regions in private memory, for tests of the native library without a node."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from smbox import dtypes
from smbox.memory import layout, orders
from smbox.memory.layout import Consistency, Slot
from smbox.native import library
from smbox.testing.kernels import scale_bytes

STRIPE_NBYTES = 4096
BLOCK_NBYTES = 1024


class Memory:
    """A slot, a holder of locks and regions without a node; ``commit`` runs one order."""

    def __init__(self, holder: int) -> None:
        self._holder = orders.block_of(holder)
        slot_nbytes = Slot.OLD_AT + Slot.EXTENTS_MAX * STRIPE_NBYTES
        self._slot = np.zeros(slot_nbytes // 8, np.uint64)
        self._slot[Slot.ID] = 7
        self._writer = orders.block_of(
            orders.address_of(self._slot), self._holder.address, BLOCK_NBYTES
        )
        self._kept: list[object] = []

    def region(
        self, data: np.ndarray, address: int = 4096, consistency: int = Consistency.STRIPE
    ) -> tuple[orders.Block, np.ndarray]:
        """Return an array as ``struct region``, and its stripe table."""
        count = -(-data.nbytes // STRIPE_NBYTES)
        header = np.zeros(layout.RegionHeader.WORDS, np.uint64)
        table = np.zeros((count, layout.Stripe.WORDS), np.uint64)
        self._kept.append((header, table, data))
        block = orders.block_of(
            *map(orders.address_of, (header, table, data.view(np.uint8))),
            data.nbytes,
            address,
            STRIPE_NBYTES,
            dtypes.of(data.dtype).code,
            consistency,
        )
        return block, table

    def commit(
        self,
        kernel: int,
        regions: list[orders.Block],
        limit: int,
        source: np.ndarray,
        scale: float = 1,
        *,
        operand: int,
        first: int = 0,
        output: int = 0,
        output_to: np.ndarray | None = None,
        parameters: np.ndarray | None = None,
    ) -> int:
        """Run one order to its end; return its result."""
        block = orders.Block(orders.ORDER_NBYTES)
        orders.write_order(
            block.bytes,
            0,
            kernel,
            operand,
            output,
            orders.extents_of(regions),
            first,
            limit,
            orders.address_of(source),
            source.nbytes,
            scale_bytes(scale),
            0 if parameters is None else orders.address_of(parameters),
            0 if output_to is None else orders.address_of(output_to),
            0,
            0,
            first,
        )
        library.load().long.smbox_commit(self._writer.ref, block.ref, 1)
        return orders.order_outcome(block)[1]


@pytest.fixture
def native() -> Memory:
    return Memory(holder=7)


@pytest.fixture(params=[0, 1], ids=["plain", "avx2"])
def level(request) -> Iterator[int]:
    """Run with the kernels of each processor level."""
    choose = library.load().short.smbox_level
    if choose(request.param) != request.param:
        pytest.skip("this processor has no AVX2")
    yield request.param
    choose(1)

from __future__ import annotations

import math

import numpy as np
import pytest

from memnode import checks
from smbox import dtypes
from smbox.errors import (
    AddressRangeError,
    ConfigError,
    LayoutMismatchError,
    RemoteProtocolError,
)
from smbox.memory.kernels import KernelCode
from smbox.memory.layout import STRIPE_NBYTES, RegionKind
from smbox.memory.region_header import RegionSpec
from smbox.wire.header import REQUEST_NBYTES_MAX, pack_scale
from smbox.wire.ops import Op, Status

FLOAT32 = dtypes.by_name("float32")


def test_ranges():
    mib = REQUEST_NBYTES_MAX
    checks.check_range(0, mib, 4 * mib, mib)
    checks.check_range(mib - 4, 4, 4 * mib, mib)
    for first, nbytes in ((0, 0), (0, mib + 1), (mib - 4, 8)):
        with pytest.raises(RemoteProtocolError):
            checks.check_range(first, nbytes, 4 * mib, mib)
    checks.check_range(2 * mib, 2 * mib, 4 * mib, 2 * mib)
    for first, nbytes in ((0, 2 * mib + 1), (mib, 2 * mib)):
        with pytest.raises(RemoteProtocolError):
            checks.check_range(first, nbytes, 4 * mib, 2 * mib)
    for first, nbytes in ((4 * mib - 4, 8), (-4, 4), (8 * mib, 4)):
        with pytest.raises(AddressRangeError):
            checks.check_range(first, nbytes, 4 * mib, mib)


def test_each_op_has_its_kernels():
    code = FLOAT32.code
    one = pack_scale(1.0, "f")
    assert checks.checked_kernel(Op.PUT, 1, code, one) is KernelCode.REPLACE
    int64 = dtypes.by_name("int64").code
    assert checks.checked_kernel(Op.FETCH, 6, int64, one) is KernelCode.COMPARE_SWAP
    for op, number in ((Op.PUT, 2), (Op.ELASTIC, 2), (Op.FETCH, 9), (Op.ACCUMULATE, 99)):
        with pytest.raises(RemoteProtocolError):
            checks.checked_kernel(op, number, code, one)


@pytest.mark.parametrize(
    ("kernel", "dtype", "kind", "shape", "nbytes", "source_nbytes"),
    [
        (KernelCode.COMPARE_SWAP, "int64", RegionKind.COUNTER, (), 8, 8),
        (KernelCode.COMPARE_SWAP, "int64", RegionKind.ARRAY, (2,), 16, 16),
        (KernelCode.ARRIVE, "uint64", RegionKind.BARRIER, (7,), 8, 8),
        (KernelCode.ARRIVE, "uint64", RegionKind.BARRIER, (7,), 56, 16),
        (KernelCode.ARRIVE, "uint64", RegionKind.ARRAY, (7,), 56, 8),
    ],
)
def test_whole_kernels_have_their_own_lengths_and_ranges(
    peer, kernel, dtype, kind, shape, nbytes, source_nbytes
):
    address = peer.create("w", shape, dtype, kind=kind).body.address
    source = np.ones(source_nbytes, np.uint8)
    reply = peer.change(Op.FETCH, kernel, address, source, nbytes=nbytes)
    no_barrier = kernel == KernelCode.ARRIVE and (kind, nbytes) != (RegionKind.BARRIER, 56)
    assert reply.status is (Status.ERROR if no_barrier else Status.LAYOUT_MISMATCH)
    assert reply.error.applied == 0
    assert not peer.get(address, nbytes, np.uint8).any()


def test_scales():
    put, add, exchange = Op.PUT, Op.ACCUMULATE, Op.ELASTIC
    int8 = dtypes.by_name("int8")
    half, minus = pack_scale(0.5, "f"), pack_scale(-3, "i")
    assert checks.checked_kernel(add, 2, FLOAT32.code, half) is KernelCode.SUM
    assert checks.checked_kernel(put, 1, FLOAT32.code, b"\xff" * 8) is KernelCode.REPLACE
    assert checks.checked_kernel(add, 2, int8.code, minus) is KernelCode.SUM
    for op, kernel, dtype, scale in (
        (add, 2, int8, pack_scale(1000, "i")),
        (add, 2, FLOAT32, pack_scale(math.nan, "f")),
        (exchange, 5, int8, pack_scale(1, "i")),
    ):
        with pytest.raises(ConfigError):
            checks.checked_kernel(op, kernel, dtype.code, scale)


@pytest.mark.parametrize(
    ("first", "nbytes", "error"),
    [
        (-4, 8, AddressRangeError),
        (12, 8, AddressRangeError),
        (2, 4, LayoutMismatchError),
        (4, 2, LayoutMismatchError),
        (4, 0, RemoteProtocolError),
    ],
)
def test_spans(first, nbytes, error):
    spec = RegionSpec("w", FLOAT32, (4,))
    checks.check_span(spec, 0, 16)
    with pytest.raises(error):
        checks.check_span(spec, first, nbytes)


def test_a_stripe_fits_a_request():
    assert REQUEST_NBYTES_MAX % STRIPE_NBYTES == 0


@pytest.mark.parametrize("kernel", [KernelCode.REPLACE, KernelCode.SUM])
@pytest.mark.parametrize(("first", "nbytes"), [(2, 4), (0, 3)])
def test_no_change_cuts_an_element(peer, kernel, first, nbytes):
    address = peer.create("w", (4,)).body.address
    source = np.ones(nbytes, np.uint8)
    reply = peer.change(Op.ACCUMULATE, kernel, address + first, source, nbytes=nbytes)
    assert (reply.status, reply.error.applied) == (Status.LAYOUT_MISMATCH, 0)
    assert not peer.get(address, 16).any()


@pytest.mark.parametrize(
    ("kernel", "source_nbytes", "operand"),
    [
        (KernelCode.REPLACE, 15, 0),
        (KernelCode.SUM, 16, 10),
        (KernelCode.SUM, 20, 0),
        (KernelCode.SCALE, 16, 0),
        (KernelCode.SCALE, 0, 10),
        (KernelCode.SCATTER_SUM, 16, 0),
        (KernelCode.SCATTER_SUM, REQUEST_NBYTES_MAX + 1, 0),
    ],
)
def test_a_source_that_does_not_fit_is_refused(peer, kernel, source_nbytes, operand):
    address = peer.create("w", (4,)).body.address
    source = np.ones(source_nbytes, np.uint8)
    scale = pack_scale(1.0, "f")
    more = {"nbytes": 16, "operand": operand, "scale": scale}
    reply = peer.change(Op.ACCUMULATE, kernel, address, source, **more)
    assert (reply.status, reply.error.applied) == (Status.LAYOUT_MISMATCH, 0)
    assert not peer.get(address, 16).any()

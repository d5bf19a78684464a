from __future__ import annotations

import math

import pytest

from memnode import checks
from smbox import dtypes
from smbox.errors import (
    AddressRangeError,
    ConfigError,
    LayoutMismatchError,
    LimitError,
    RemoteProtocolError,
)
from smbox.memory.kernels import KernelCode
from smbox.memory.layout import STRIPE_NBYTES, RegionKind
from smbox.memory.region_header import RegionSpec
from smbox.wire.header import REQUEST_NBYTES_MAX, pack_scale
from smbox.wire.messages import Create
from smbox.wire.ops import Op

FLOAT32 = dtypes.by_name("float32")
SPEC = RegionSpec("w", FLOAT32, (1024,))
TOKEN = bytes(range(16))


def create(**fields):
    return Create(
        **({"name": "w", "dtype": "float32", "shape": (4, 2), "token": TOKEN} | fields)
    )


def test_a_create_becomes_a_spec():
    spec = checks.spec_of(create())
    assert (spec.name, spec.dtype, spec.shape) == ("w", FLOAT32, (4, 2))
    assert spec.token.to_bytes(16, "little") == TOKEN


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"dtype": "complex64"}, ConfigError),
        ({"kind": 9}, ConfigError),
        ({"shape": (1 << 40, 1 << 40)}, LimitError),
        ({"kind": RegionKind.COUNTER}, ConfigError),
        ({"kind": RegionKind.COUNTER, "dtype": "int64", "shape": (2,)}, ConfigError),
        ({"kind": RegionKind.BARRIER, "dtype": "int64", "shape": (9,)}, ConfigError),
        ({"kind": RegionKind.BARRIER, "dtype": "uint64", "shape": (3,)}, ConfigError),
        ({"kind": RegionKind.BARRIER, "dtype": "uint64", "shape": (1 << 20,)}, ConfigError),
    ],
)
def test_creates_that_make_no_sense(fields, error):
    with pytest.raises(error):
        checks.spec_of(create(**fields))


def test_counters_and_barriers():
    assert checks.spec_of(create(kind=2, dtype="int64", shape=())).kind == RegionKind.COUNTER
    assert checks.spec_of(create(kind=3, dtype="uint64", shape=(7,))).kind == RegionKind.BARRIER


@pytest.mark.parametrize(
    ("dtype", "init"),
    [("float32", 0.1), ("float32", math.nan), ("int8", -128), ("uint8", 255.0), ("bool", True)],
)
def test_inits(dtype, init):
    checks.check_init(dtypes.by_name(dtype), init)


@pytest.mark.parametrize(
    ("dtype", "init"),
    [("int8", 128), ("uint8", -1), ("int32", 0.5), ("int64", math.inf), ("bool", 2)],
)
def test_inits_that_do_not_fit(dtype, init):
    with pytest.raises(ConfigError):
        checks.check_init(dtypes.by_name(dtype), init)


def test_ranges():
    mib = REQUEST_NBYTES_MAX
    checks.check_range(0, mib, 4 * mib)
    checks.check_range(mib - 4, 4, 4 * mib)
    for first, nbytes in ((0, 0), (0, mib + 1), (mib - 4, 8)):
        with pytest.raises(RemoteProtocolError):
            checks.check_range(first, nbytes, 4 * mib)
    checks.check_range(2 * mib, 2 * mib, 4 * mib, 2 * mib)
    for first, nbytes in ((0, 2 * mib + 1), (mib, 2 * mib)):
        with pytest.raises(RemoteProtocolError):
            checks.check_range(first, nbytes, 4 * mib, 2 * mib)
    for first, nbytes in ((4 * mib - 4, 8), (-4, 4), (8 * mib, 4)):
        with pytest.raises(AddressRangeError):
            checks.check_range(first, nbytes, 4 * mib)


def test_each_op_has_its_kernels():
    assert checks.kernel_of(Op.PUT, 1) is KernelCode.REPLACE
    assert checks.kernel_of(Op.FETCH, 6) is KernelCode.COMPARE_SWAP
    for op, number in ((Op.PUT, 2), (Op.ELASTIC, 2), (Op.FETCH, 9), (Op.ACCUMULATE, 99)):
        with pytest.raises(RemoteProtocolError):
            checks.kernel_of(op, number)


def test_sources_have_the_length_of_their_range():
    checks.check_source(KernelCode.SUM, SPEC, 4, 8, 8)
    for first, nbytes, source_nbytes in ((2, 8, 8), (4, 6, 6), (4, 8, 4)):
        with pytest.raises(LayoutMismatchError):
            checks.check_source(KernelCode.SUM, SPEC, first, nbytes, source_nbytes)


def test_whole_kernels_have_their_own_lengths_and_ranges():
    counter = RegionSpec("c", dtypes.by_name("int64"), (), kind=RegionKind.COUNTER)
    barrier = RegionSpec("b", dtypes.by_name("uint64"), (7,), kind=RegionKind.BARRIER)
    checks.check_source(KernelCode.COMPARE_SWAP, counter, 0, 8, 16)
    checks.check_source(KernelCode.ARRIVE, barrier, 0, 56, 8)
    with pytest.raises(LayoutMismatchError):
        checks.check_source(KernelCode.COMPARE_SWAP, counter, 0, 8, 8)
    with pytest.raises(ConfigError):
        checks.check_source(KernelCode.COMPARE_SWAP, barrier, 0, 16, 16)
    with pytest.raises(ConfigError):
        checks.check_source(KernelCode.ARRIVE, barrier, 0, 8, 8)
    with pytest.raises(ConfigError):
        checks.check_source(KernelCode.ARRIVE, RegionSpec("w", barrier.dtype, (7,)), 0, 56, 8)


def test_scales():
    put, add, exchange = Op.PUT, Op.ACCUMULATE, Op.ELASTIC
    int8 = dtypes.by_name("int8")
    half, minus = pack_scale(0.5, "f"), pack_scale(-3, "i")
    assert checks.terms_of(add, 2, FLOAT32, half) == (KernelCode.SUM, 0.5)
    assert checks.terms_of(put, 1, FLOAT32, b"\xff" * 8) == (KernelCode.REPLACE, 1)
    assert checks.terms_of(add, 2, int8, minus) == (KernelCode.SUM, -3)
    for op, kernel, dtype, scale in (
        (add, 2, int8, pack_scale(1000, "i")),
        (add, 2, FLOAT32, pack_scale(math.nan, "f")),
        (exchange, 5, int8, pack_scale(1, "i")),
    ):
        with pytest.raises(ConfigError):
            checks.terms_of(op, kernel, dtype, scale)


@pytest.mark.parametrize("consistency", [0, 2, 4])
def test_a_consistency_that_is_unknown_is_told(consistency):
    with pytest.raises(ConfigError, match="consistency is one of stripe, none"):
        checks.spec_of(create(consistency=consistency))


@pytest.mark.parametrize(
    ("first", "nbytes", "error"),
    [
        (-4, 8, AddressRangeError),
        (12, 8, AddressRangeError),
        (2, 4, LayoutMismatchError),
        (4, 2, LayoutMismatchError),
        (4, 0, LayoutMismatchError),
    ],
)
def test_spans(first, nbytes, error):
    spec = RegionSpec("w", FLOAT32, (4,))
    checks.check_span(spec, 0, 16)
    with pytest.raises(error):
        checks.check_span(spec, first, nbytes)


def test_both_regions_have_the_same_elements():
    checks.check_same_elements(SPEC, SPEC)
    with pytest.raises(LayoutMismatchError):
        checks.check_same_elements(SPEC, RegionSpec("w", dtypes.by_name("int8"), (4,)))


def test_a_stripe_fits_a_request():
    assert REQUEST_NBYTES_MAX % STRIPE_NBYTES == 0


@pytest.mark.parametrize("code", [KernelCode.REPLACE, KernelCode.SUM])
def test_no_change_cuts_an_element(code):
    with pytest.raises(LayoutMismatchError, match="cuts"):
        checks.check_source(code, SPEC, 2, 4, 4)
    with pytest.raises(LayoutMismatchError, match="cuts"):
        checks.check_source(code, SPEC, 0, 3, 3)


def test_an_empty_shape_is_no_excuse_for_a_length_that_no_array_has():
    with pytest.raises(LimitError, match="address"):
        checks.spec_of(Create(name="w", dtype="float32", shape=(0, 1 << 62), token=bytes(16)))

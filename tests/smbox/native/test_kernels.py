"""Every kernel of the native library against numpy, bit for bit; a NaN need only be one."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from smbox import dtypes
from smbox.memory import scatter
from smbox.memory.kernels import KERNELS, KernelCode, native_scale
from smbox.memory.layout import Consistency, Stripe
from smbox.memory.optimizers import OPTIMIZERS, OptimizerCode
from smbox.memory.orders import Back, Result
from smbox.testing import kernels as oracle

pytestmark = pytest.mark.shares  # nothing but memory of its own

LENGTHS = (1, 31, 257, 2500)
ELEMENTWISE = [
    code for code, row in KERNELS.items() if not row.is_whole and code != KernelCode.ELASTIC
]
FLOATS = [dtype for dtype in dtypes.TABLE if dtype.kind == "float"]
PAIRS = [(dtype, dtype) for dtype in dtypes.TABLE] + [
    (dtypes.by_name("float32"), dtypes.by_name(name)) for name in ("float16", "bfloat16")
]
FLOAT_PAIRS = [pair for pair in PAIRS if pair[0].kind == "float"]
SPECIAL = [0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 1e-45, -1e-40, 6e-8, 3e38, 65504.0]
SCALES = {"float": (1, 0.3, -2.0, 0.0), "int": (1, 3, -1), "uint": (1, 3), "bool": (1,)}
PARAMETERS = {
    OptimizerCode.MOMENTUM: (0.1, 0.9),
    OptimizerCode.NESTEROV: (0.1, 0.9),
    OptimizerCode.ADAGRAD: (0.1, 1e-10),
    OptimizerCode.ADAM: (1e-3, 0.9, 0.999, 1e-8),
}


def names(value) -> str | None:
    if isinstance(value, tuple):
        return "-".join(dtype.name for dtype in value)
    return getattr(value, "name", None)


def elements(dtype: dtypes.DType, count: int, seed: int) -> np.ndarray:
    """Random bit patterns, numbers near one, and every special value that fits."""
    rng = np.random.default_rng(seed)
    if dtype.kind == "bool":
        return rng.integers(0, 2, count).astype(bool)
    found = rng.integers(0, 256, count * dtype.itemsize, np.uint8).view(dtype.numpy).copy()
    if dtype.kind == "float":
        near = rng.standard_normal(count).astype(np.float32).astype(dtype.numpy)
        found = np.where(rng.random(count) < 0.6, near, found)
        with np.errstate(over="ignore"):
            special = rng.permutation(np.array(SPECIAL)).astype(dtype.numpy)
        found[: len(SPECIAL)] = special[:count]
    return found


def unaligned(array: np.ndarray) -> np.ndarray:
    """Copy an array's bytes to an odd address."""
    space = np.zeros(array.nbytes + 2, np.uint8)
    begin = 1 + space.ctypes.data % 2
    space[begin : begin + array.nbytes] = array.reshape(-1).view(np.uint8)
    return space[begin : begin + array.nbytes]


def same(found: np.ndarray, wanted: np.ndarray) -> None:
    assert found.dtype == wanted.dtype
    bits = f"u{found.itemsize}"
    is_same = found.view(bits) == wanted.view(bits)
    if found.dtype.kind not in "biu":
        with np.errstate(invalid="ignore"):  # signalling ones
            is_same |= np.isnan(found) & np.isnan(wanted)
    (wrong,) = np.nonzero(~is_same)
    assert not wrong.size, (wrong[:5], found[wrong[:5]], wanted[wrong[:5]])


@pytest.mark.parametrize("pair", PAIRS, ids=names)
@pytest.mark.parametrize("code", ELEMENTWISE, ids=names)
def test_elementwise_kernels(native, level, code, pair):
    dtype, operand = pair
    scales = SCALES[dtype.kind] if KERNELS[code].has_scale else (1,)
    for seed, (count, scale) in enumerate(itertools.product(LENGTHS, scales)):
        c, x = elements(dtype, count, seed), elements(operand, count, seed + 99)
        factor = native_scale(code, dtype, scale)
        data, old = c.copy(), np.zeros_like(c)
        region, table = native.region(data)
        result = native.commit(
            code,
            [region],
            c.nbytes,
            unaligned(x),
            factor,
            operand=operand.code,
            back=Back.OLD,
            back_to=old.view(np.uint8),
        )
        assert result == Result.DONE
        same(data, oracle.changed(code, c, x, factor))
        assert old.tobytes() == c.tobytes()
        assert (table[:, Stripe.SEQUENCE] == 1 << Stripe.COMMITS_SHIFT).all()


@pytest.mark.parametrize("back", list(Back), ids=names)
@pytest.mark.parametrize("pair", FLOAT_PAIRS, ids=names)
def test_elastic(native, level, pair, back):
    dtype, operand = pair
    for count in LENGTHS:
        check_elastic(native, dtype, operand, back, count)


def check_elastic(native, dtype, operand, back, count):
    c, x = elements(dtype, count, 1), elements(operand, count, 2)
    rate = native_scale(KernelCode.ELASTIC, dtype, 0.3)
    wanted = oracle.exchange(c, x, rate)
    answers = {Back.NOTHING: c, Back.MOVED: wanted.x, Back.DELTA: wanted.d, Back.OLD: c}
    for in_place in (False, True) if back == Back.MOVED else (False,):
        source, data = unaligned(x), c.copy()
        space = unaligned(np.zeros_like(answers[back]))
        given = source if in_place else space
        result = native.commit(
            KernelCode.ELASTIC,
            [native.region(data)[0]],
            c.nbytes,
            source,
            rate,
            operand=operand.code,
            back=back,
            back_to=given if back != Back.NOTHING else None,
        )
        assert result == Result.DONE
        same(data, wanted.c)
        if back != Back.NOTHING:
            same(np.frombuffer(given.tobytes(), answers[back].dtype), answers[back])


@pytest.mark.parametrize("pair", FLOAT_PAIRS, ids=names)
@pytest.mark.parametrize("code", list(OptimizerCode), ids=names)
def test_optimizers(native, level, code, pair):
    for count in LENGTHS:
        check_optimizer(native, code, *pair, count)


def check_optimizer(native, code, dtype, operand, count):
    arrays = [elements(dtype, count, 1)]
    for seed, _ in enumerate(OPTIMIZERS[code].states):
        arrays.append(np.abs(elements(dtype, count, seed + 2)))
    mapped = [
        native.region(array, address=(index + 1) << 20) for index, array in enumerate(arrays)
    ]
    parameters = np.zeros(4)
    parameters[: len(PARAMETERS[code])] = PARAMETERS[code]
    for step in (1, 2, 3):
        g = elements(operand, count, step + 50)
        before = [array.copy() for array in arrays]
        result = native.commit(
            code,
            [block for block, _ in mapped],
            arrays[0].nbytes,
            unaligned(g),
            1.0,
            operand=operand.code,
            parameters=parameters,
        )
        assert result == Result.DONE
        wanted = oracle.stepped(code, before[0], before[1:], g, PARAMETERS[code], step)
        for found, expected in zip(arrays, wanted, strict=True):
            same(found, expected)


@pytest.mark.parametrize("code", [KernelCode.SCATTER_PUT, KernelCode.SCATTER_SUM], ids=names)
@pytest.mark.parametrize("dtype", dtypes.TABLE, ids=str)
def test_scatters(native, level, code, dtype):
    rows, width = 9, 5
    for scale in SCALES[dtype.kind] if KERNELS[code].has_scale else (1,):
        c = elements(dtype, rows * width, 1)
        places = np.array([8, 0, 3, 8, 8, 3], np.int64)
        values = elements(dtype, places.size * width, 2).reshape(-1, width)
        operand = scatter.pack(places, values)
        factor, data = native_scale(code, dtype, scale), c.copy()
        region = native.region(data)[0]
        x = unaligned(operand)
        assert native.commit(code, [region], c.nbytes, x, factor, operand=dtype.code) == 0
        same(data, oracle.changed(code, c, operand, factor))


@pytest.mark.parametrize(
    "dtype", [d for d in dtypes.TABLE if d.kind in {"int", "uint"}], ids=str
)
def test_compare_and_swap(native, level, dtype):
    for c, x in (([5], [5, 9]), ([5], [4, 9])):
        data, source = np.array(c, dtype.numpy), np.array(x, dtype.numpy)
        region = native.region(data)[0]
        wanted = oracle.changed(KernelCode.COMPARE_SWAP, data, source)
        operand = unaligned(source)
        assert (
            native.commit(
                KernelCode.COMPARE_SWAP, [region], data.nbytes, operand, operand=dtype.code
            )
            == Result.DONE
        )
        same(data, wanted)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.data())
def test_barriers_of_any_words(native, data):
    """Damaged words too: they do not crash it."""
    word = st.integers(0, 5) | st.just(2**64 - 1)
    words = np.array(data.draw(st.lists(word, min_size=4, max_size=8)), np.uint64)
    member = np.array([data.draw(st.integers(0, 4))], np.uint64)
    for code in (KernelCode.ARRIVE, KernelCode.WITHDRAW):
        found = words.copy()
        region = native.region(found)[0]
        source = member.view(np.uint8)
        assert native.commit(code, [region], words.nbytes, source, operand=9) == Result.DONE
        same(found, oracle.changed(code, words, member))


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    bits=st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=40),
    name=st.sampled_from(["float16", "bfloat16", "float32"]),
    scale=st.floats(width=16, allow_nan=False, allow_infinity=False),
)
def test_any_bits_sum_alike(native, bits, name, scale):
    dtype = dtypes.by_name(name)
    kept = np.array(bits, np.uint32).view(np.uint8)
    c = kept.reshape(-1, 4)[:, 4 - dtype.itemsize :].copy().view(dtype.numpy).reshape(-1)
    x = c[::-1].copy()
    factor, data = native_scale(KernelCode.SUM, dtype, scale), c.copy()
    region = native.region(data)[0]
    source = x.view(np.uint8)
    native.commit(KernelCode.SUM, [region], c.nbytes, source, factor, operand=dtype.code)
    same(data, oracle.changed(KernelCode.SUM, c, x, factor))


@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_every_half_float_rounds_as_numpy_rounds(native, level, name):
    """All 65,536 of them, and the values half way between two."""
    dtype = dtypes.by_name(name)
    every = np.arange(1 << 16, dtype=np.uint16).view(dtype.numpy)
    for nudge in (0.0, 2.0**-9, -(2.0**-9), 2.0**-12):
        with np.errstate(all="ignore"):
            x = (every.astype(np.float32) * np.float32(nudge)).astype(dtype.numpy)
        data = every.copy()
        region = native.region(data)[0]
        source = x.view(np.uint8)
        native.commit(KernelCode.SUM, [region], data.nbytes, source, 1.0, operand=dtype.code)
        same(data, oracle.changed(KernelCode.SUM, every, x, 1.0))


@pytest.mark.parametrize("first", [4, 1024, 4092, 4096])
def test_a_range_inside_the_region_changes_nothing_else(native, level, first):
    c = elements(dtypes.by_name("float32"), 3000, 3)
    data, limit = c.copy(), first + 4100
    x = elements(dtypes.by_name("float32"), 1025, 4)
    assert (
        native.commit(
            KernelCode.SUM, [native.region(data)[0]], limit, unaligned(x), 2.0, first=first,
            operand=12,
        )
        == Result.DONE
    )  # fmt: skip
    wanted = c.copy()
    part = slice(first // 4, limit // 4)
    wanted[part] = oracle.changed(KernelCode.SUM, c[part], x, 2.0)
    same(data, wanted)


@pytest.mark.parametrize("back", [Back.NOTHING, Back.OLD, Back.MOVED, Back.DELTA], ids=names)
def test_a_region_without_locks_computes_the_same(native, level, back):
    dtype = dtypes.by_name("float32")
    c, x = elements(dtype, 2500, 5), elements(dtype, 2500, 6)
    data, answer = c.copy(), np.zeros_like(c)
    region, table = native.region(data, consistency=Consistency.NONE)
    rate = native_scale(KernelCode.ELASTIC, dtype, 0.25)
    assert (
        native.commit(
            KernelCode.ELASTIC,
            [region],
            c.nbytes,
            unaligned(x),
            rate,
            operand=dtype.code,
            back=back,
            back_to=answer.view(np.uint8) if back else None,
        )
        == Result.DONE
    )
    wanted = oracle.exchange(c, x, rate)
    same(data, wanted.c)
    if back:
        same(answer, {Back.OLD: c, Back.MOVED: wanted.x, Back.DELTA: wanted.d}[back])
    assert (table[:, Stripe.SEQUENCE] == 1 << Stripe.COMMITS_SHIFT).all()


def bad_orders():
    one = np.ones(4, np.float32).view(np.uint8)
    yield "a source too short", {"source": one[:-4]}
    yield "a source too long", {"source": np.ones(5, np.float32).view(np.uint8)}
    yield "behind the region", {"limit": 20, "source": np.ones(5, np.float32).view(np.uint8)}
    yield "inside an element", {"limit": 14, "source": one[:14]}
    yield "no such kernel", {"kernel": 11}
    yield "kernel zero", {"kernel": 0}
    yield "wider operand", {"operand": 13, "source": np.ones(4).view(np.uint8)}
    yield "a float for whole numbers", {"kernel": KernelCode.COMPARE_SWAP}
    yield "an optimizer without its state", {"kernel": OptimizerCode.ADAM}
    yield "no operand type", {"operand": 99}
    yield "a scatter of nothing", {"kernel": KernelCode.SCATTER_SUM, "source": one[:8]}
    far = scatter.pack(np.array([2], np.int64), np.ones((1, 2), np.float32))
    yield "a row outside", {"kernel": KernelCode.SCATTER_SUM, "source": far}
    before = scatter.pack(np.array([-1], np.int64), np.ones((1, 2), np.float32))
    yield "a row before", {"kernel": KernelCode.SCATTER_PUT, "source": before}
    huge = far.copy()
    huge.view(np.uint64)[0] = 2**61  # count * (8 + row) wraps around to a small number
    yield "a count that wraps around", {"kernel": KernelCode.SCATTER_SUM, "source": huge}


@pytest.mark.parametrize("wrong", [order for _, order in bad_orders()], ids=[
    name for name, _ in bad_orders()
])  # fmt: skip
def test_an_order_that_does_not_fit_changes_nothing(native, wrong):
    data = np.arange(4, dtype=np.float32)
    region, table = native.region(data)
    order = {"kernel": KernelCode.SUM, "limit": 16, "operand": 12} | wrong
    source = order.pop("source", np.ones(4, np.float32).view(np.uint8))
    kernel, limit = order.pop("kernel"), order.pop("limit")
    assert native.commit(kernel, [region], limit, source, 1.0, **order) == Result.BAD_ORDER
    assert data.tolist() == [0, 1, 2, 3]
    assert not table.any()

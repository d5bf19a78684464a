"""Every kernel of the native library against numpy: equal bits, but any NaN equals any NaN."""

from __future__ import annotations

import itertools
import operator

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from smbox import dtypes
from smbox.memory.kernels import KernelCode, OptimizerCode, scatter_operand
from smbox.memory.layout import Consistency, Stripe
from smbox.memory.orders import Output, Result, address_of
from smbox.native import library
from smbox.testing import kernels as oracle
from smbox.testing.kernel_cases import (
    KernelCase,
    difference,
    elements,
    kernel_cases,
    unaligned,
)

pytestmark = pytest.mark.shares  # nothing but memory of its own

LENGTHS = (1, 31, 257, 2500)


def by_name() -> list[list[KernelCase]]:
    key = operator.attrgetter("name")
    cases = sorted(kernel_cases(LENGTHS), key=key)
    return [list(group) for _, group in itertools.groupby(cases, key)]


def same(found: np.ndarray, wanted: np.ndarray) -> None:
    told = difference(found, wanted)
    assert told is None, told


@pytest.mark.parametrize("cases", by_name(), ids=lambda cases: cases[0].name)
def test_every_kernel(native, level, cases):
    for case in cases:
        source = unaligned(case.source)
        check(native, case, source, None)
        if case.output == Output.MOVED:
            source = unaligned(case.source)
            check(native, case, source, source)  # x moves in place


def check(native, case: KernelCase, source: np.ndarray, output_to: np.ndarray | None) -> None:
    arrays = [region.copy() for region in case.regions]
    mapped = [native.region(array, (at + 1) << 20) for at, array in enumerate(arrays)]
    parameters = np.zeros(4)
    parameters[: len(case.parameters)] = case.parameters
    if output_to is None and case.answer is not None:
        output_to = unaligned(np.zeros_like(case.answer))
    result = native.commit(
        case.kernel,
        [block for block, _ in mapped],
        arrays[0].nbytes,
        source,
        case.scale,
        operand=case.operand,
        output=case.output,
        output_to=output_to,
        parameters=parameters if case.parameters else None,
    )
    assert result == Result.DONE
    for found, wanted in zip(arrays, case.wanted, strict=True):
        same(found, wanted)
    if case.answer is not None:
        same(np.frombuffer(output_to.tobytes(), case.answer.dtype), case.answer)
    for _, table in mapped:
        assert (table[:, Stripe.SEQUENCE] == 1 << Stripe.COMMITS_SHIFT).all()


def test_adam_counts_its_steps(native, level):
    arrays = [elements(dtypes.by_name("float32"), 2500, seed) for seed in range(3)]
    arrays[2] = np.abs(arrays[2])
    by, g = (1e-3, 0.9, 0.999, 1e-8), elements(dtypes.by_name("float32"), 2500, 9)
    mapped = [native.region(array, (at + 1) << 20)[0] for at, array in enumerate(arrays)]
    source, parameters = unaligned(g), np.array(by)
    for step in (1, 2, 3):
        before = [array.copy() for array in arrays]
        native.commit(
            OptimizerCode.ADAM, mapped, 10_000, source, 1.0, operand=12, parameters=parameters
        )
        wanted = oracle.stepped(OptimizerCode.ADAM, before[0], before[1:], g, by, step)
        for found, expected in zip(arrays, wanted, strict=True):
            same(found, expected)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.data())
def test_barriers_of_any_words(native, data):
    """Damaged words do not crash it."""
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
    factor, data = oracle.native_scale(KernelCode.SUM, dtype, scale), c.copy()
    region = native.region(data)[0]
    source = x.view(np.uint8)
    native.commit(KernelCode.SUM, [region], c.nbytes, source, factor, operand=dtype.code)
    same(data, oracle.changed(KernelCode.SUM, c, x, factor))


@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_every_half_float_rounds_as_numpy_rounds(native, level, name):
    """All 65,536 values, and the midpoints between neighbours."""
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


@pytest.mark.parametrize("output", list(Output), ids=lambda output: output.name)
def test_a_region_without_locks_computes_the_same(native, level, output):
    dtype = dtypes.by_name("float32")
    c, x = elements(dtype, 2500, 5), elements(dtype, 2500, 6)
    data, answer = c.copy(), np.zeros_like(c)
    region, table = native.region(data, consistency=Consistency.NONE)
    rate = oracle.native_scale(KernelCode.ELASTIC, dtype, 0.25)
    assert (
        native.commit(
            KernelCode.ELASTIC,
            [region],
            c.nbytes,
            unaligned(x),
            rate,
            operand=dtype.code,
            output=output,
            output_to=answer.view(np.uint8) if output else None,
        )
        == Result.DONE
    )
    wanted = oracle.exchange(c, x, rate)
    same(data, wanted.c)
    if output:
        outputs = {
            Output.OLD: c,
            Output.MOVED: wanted.x,
            Output.DELTA: wanted.d,
            Output.NEW: wanted.c,
        }
        same(answer, outputs[output])
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
    far = scatter_operand(np.array([2], np.int64), np.ones((1, 2), np.float32))
    yield "a row outside", {"kernel": KernelCode.SCATTER_SUM, "source": far}
    before = scatter_operand(np.array([-1], np.int64), np.ones((1, 2), np.float32))
    yield "a row before", {"kernel": KernelCode.SCATTER_PUT, "source": before}


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


@pytest.mark.parametrize("name", ["float16", "bfloat16", "float32", "float64"])
def test_every_dot(level, name):
    dtype, rng = dtypes.by_name(name), np.random.default_rng(3)
    for count in (0, 1, 7, 8, 31, 2500):
        any_bits = (elements(dtype, count, 1), elements(dtype, count, 2))
        near_one = tuple(rng.standard_normal((2, count)).astype(dtype.numpy))
        for a, b in (any_bits, near_one):
            x, y, found = unaligned(a), unaligned(b), np.zeros(1)
            sent = (address_of(x), address_of(y), count, dtype.code, address_of(found))
            assert library.load().long.smbox_dot(*sent) == Result.DONE
            same(found, np.array([oracle.dot(a, b)]))


def test_only_floats_have_a_dot(level):
    found = np.zeros(1)
    for dtype in (0, dtypes.by_name("int64").code, 99):
        at = address_of(found)
        assert library.load().long.smbox_dot(at, at, 1, dtype, at) == Result.BAD_ORDER
    assert found == [0]

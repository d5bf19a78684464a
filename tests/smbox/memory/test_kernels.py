from __future__ import annotations

import numpy as np
import pytest

from smbox import dtypes
from smbox.errors import ConfigError
from smbox.memory.kernels import KERNELS, KernelCode, scale_of
from smbox.testing.kernels import changed, native_scale

GENERATION, ARRIVED = 0, 1


def after(
    code: KernelCode, dtype_name: str, data: list, source: list, scale: float = 1
) -> list:
    dtype = dtypes.by_name(dtype_name)
    c, x = (np.array(values).astype(dtype.numpy) for values in (data, source))
    return changed(code, c, x, native_scale(code, dtype, scale)).tolist()


def test_codes_are_those_that_journals_hold():
    assert [(code.name, int(code)) for code in KernelCode] == [
        ("REPLACE", 1),
        ("SUM", 2),
        ("MIN", 3),
        ("MAX", 4),
        ("ELASTIC", 5),
        ("COMPARE_SWAP", 6),
        ("ARRIVE", 7),
        ("WITHDRAW", 8),
        ("SCATTER_PUT", 9),
        ("SCATTER_SUM", 10),
        ("SCALE", 11),
    ]
    assert set(KERNELS) == set(KernelCode)


@pytest.mark.parametrize("dtype", [d for d in dtypes.TABLE if d.kind != "bool"], ids=str)
def test_elementwise_kernels_of_every_number_type(dtype: dtypes.DType):
    name = dtype.name
    assert after(KernelCode.REPLACE, name, [1, 2, 3], [7, 8, 9]) == [7, 8, 9]
    assert after(KernelCode.SUM, name, [1, 2, 3], [7, 8, 9], 2) == [15, 18, 21]
    assert after(KernelCode.MIN, name, [1, 9, 3], [7, 8, 2]) == [1, 8, 2]
    assert after(KernelCode.MAX, name, [1, 9, 3], [7, 8, 2]) == [7, 9, 3]


@pytest.mark.parametrize("dtype", [d for d in dtypes.TABLE if d.kind == "float"], ids=str)
def test_elastic_moves_the_center_by_its_share(dtype: dtypes.DType):
    assert after(KernelCode.ELASTIC, dtype.name, [0, 4], [8, 0], 0.25) == [2, 3]


def test_elastic_is_for_floats_only():
    with pytest.raises(ConfigError, match="ELASTIC"):
        scale_of(KernelCode.ELASTIC, dtypes.by_name("int32"), 1)


def test_bools_are_or_ed_and_and_ed():
    data, source = [False, False, True, True], [False, True, False, True]
    assert after(KernelCode.SUM, "bool", data, source) == [False, True, True, True]
    assert after(KernelCode.MAX, "bool", data, source) == [False, True, True, True]
    assert after(KernelCode.MIN, "bool", data, source) == [False, False, False, True]
    with pytest.raises(ConfigError, match="scale"):
        scale_of(KernelCode.SUM, dtypes.by_name("bool"), 2)


def test_whole_numbers_wrap_around_and_floats_overflow_without_a_warning():
    assert after(KernelCode.SUM, "int8", [127], [1]) == [-128]
    assert after(KernelCode.SUM, "uint64", [0], [1], 2**64 - 1) == [2**64 - 1]
    assert after(KernelCode.SUM, "float16", [60000], [60000]) == [np.inf]


def test_min_and_max_pass_nan_on():
    for code in (KernelCode.MIN, KernelCode.MAX):
        assert np.isnan(after(code, "float32", [np.nan, 1.0], [1.0, np.nan])).all()


@pytest.mark.parametrize(
    ("name", "scale"),
    [
        ("int8", 128),
        ("int64", 0.5),
        ("uint8", -1),
        ("uint64", 2**64),
        ("int32", float("nan")),
        ("int32", float("inf")),
        ("float32", float("nan")),
        ("float32", 1e39),
        ("float16", 1e39),
        ("bfloat16", float("inf")),
        ("float32", [2.0]),
    ],
)
def test_a_scale_that_the_type_cannot_hold_is_refused(name: str, scale: float):
    with pytest.raises(ConfigError, match="scale"):
        scale_of(KernelCode.SUM, dtypes.by_name(name), scale)


@pytest.mark.parametrize(
    ("name", "scale"), [("int8", -128), ("int64", 3.0), ("uint64", 2**64 - 1), ("bool", True)]
)
def test_a_scale_is_of_the_regions_type(name: str, scale: float):
    dtype = dtypes.by_name(name)
    found = scale_of(KernelCode.SUM, dtype, scale)
    assert found == scale
    assert found.dtype == dtype.numpy


def test_floats_are_rounded_to_the_type_and_stay_so():
    dtype = dtypes.by_name("float32")
    found = scale_of(KernelCode.SUM, dtype, 0.1)
    assert float(found) == float(np.float32(0.1)) != 0.1
    assert scale_of(KernelCode.SUM, dtype, found) == found


@pytest.mark.parametrize("code", [KernelCode.REPLACE, KernelCode.MIN, KernelCode.ARRIVE])
def test_kernels_without_a_scale_demand_one(code: KernelCode):
    with pytest.raises(ConfigError, match="takes no scale"):
        scale_of(code, dtypes.by_name("uint64"), 2)


def test_compare_swap():
    assert after(KernelCode.COMPARE_SWAP, "int64", [5], [5, -9]) == [-9]
    assert after(KernelCode.COMPARE_SWAP, "int64", [5], [4, -9]) == [5]


def barrier_of(parties: int) -> np.ndarray:
    return np.array([0, 0, parties] + [0] * parties, np.uint64)


def step(barrier: np.ndarray, code: KernelCode, member: int) -> list[int]:
    barrier[:] = changed(code, barrier, np.array([member], np.uint64))
    return [int(barrier[GENERATION]), int(barrier[ARRIVED])]


def test_the_last_to_arrive_opens_the_barrier():
    barrier = barrier_of(3)
    assert step(barrier, KernelCode.ARRIVE, 7) == [0, 1]
    assert step(barrier, KernelCode.ARRIVE, 2**63 + 1) == [0, 2]
    assert step(barrier, KernelCode.ARRIVE, 9) == [1, 0]
    assert step(barrier, KernelCode.ARRIVE, 9) == [1, 1]


def test_who_has_arrived_does_not_arrive_again():
    barrier = barrier_of(2)
    step(barrier, KernelCode.ARRIVE, 7)
    assert step(barrier, KernelCode.ARRIVE, 7) == [0, 1]


def test_a_withdrawn_member_is_not_counted_and_may_come_back():
    barrier = barrier_of(3)
    step(barrier, KernelCode.ARRIVE, 7)
    step(barrier, KernelCode.ARRIVE, 8)
    assert step(barrier, KernelCode.WITHDRAW, 7) == [0, 1]
    assert step(barrier, KernelCode.WITHDRAW, 7) == [0, 1]
    assert step(barrier, KernelCode.ARRIVE, 8) == [0, 1]
    assert step(barrier, KernelCode.ARRIVE, 7) == [0, 2]
    assert step(barrier, KernelCode.ARRIVE, 1) == [1, 0]


def test_a_withdrawal_after_the_opening_takes_nothing_back():
    barrier = barrier_of(1)
    assert step(barrier, KernelCode.ARRIVE, 7) == [1, 0]
    assert step(barrier, KernelCode.WITHDRAW, 7) == [1, 0]


@pytest.mark.parametrize("dtype", ["float32", "float16", "int8", "uint64"])
@pytest.mark.parametrize(
    "scale", ["2", None, 1j, 10**400, b"2"], ids=lambda scale: str(scale)[:5]
)
def test_a_scale_is_a_number(dtype, scale):
    with pytest.raises(ConfigError, match="scale"):
        scale_of(KernelCode.SUM, dtypes.by_name(dtype), scale)

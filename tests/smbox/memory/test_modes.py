from __future__ import annotations

import numpy as np
import pytest

from smbox import dtypes
from smbox.errors import ConfigError
from smbox.memory.kernels import KernelCode
from smbox.memory.modes import Mode, factors, flat, mode_of, terms_of


@pytest.mark.parametrize("dtype", dtypes.TABLE, ids=str)
def test_every_type_can_be_replaced_by_compiled_code(dtype: dtypes.DType):
    assert mode_of(KernelCode.REPLACE, dtype) == Mode.REPLACE


def test_only_these_kernels_are_compiled():
    found = {
        (code.name, dtype.name): mode_of(code, dtype)
        for code in KernelCode
        for dtype in dtypes.TABLE
        if code != KernelCode.REPLACE and mode_of(code, dtype) != Mode.NUMPY
    }
    assert found == {
        ("SUM", "float32"): Mode.SUM_FLOAT32,
        ("SUM", "float64"): Mode.SUM_FLOAT64,
        ("SUM", "int64"): Mode.SUM_INT64,
        ("SUM", "uint64"): Mode.SUM_INT64,
        ("ELASTIC", "float32"): Mode.ELASTIC_FLOAT32,
        ("ELASTIC", "float64"): Mode.ELASTIC_FLOAT64,
    }


@pytest.mark.parametrize(
    ("name", "scale", "wanted"),
    [
        ("float32", 0.1, (0.1, 1)),
        ("float32", 1e38, (float(np.float32(1e38)), 1)),
        ("float32", np.float32(0.1), (float(np.float32(0.1)), 1)),
        ("float64", 0.1, (0.1, 1)),
        ("float64", 1, (1.0, 1)),
        ("int64", -3, (1.0, -3)),
        ("int64", np.int64(1), (1.0, 1)),
        ("uint64", 2**64 - 2, (1.0, -2)),
    ],
)
def test_factors_are_the_scale_as_compiled_code_takes_it(name, scale, wanted):
    assert factors(KernelCode.SUM, dtypes.by_name(name), scale) == wanted


def test_factors_refuse_what_scale_of_refuses():
    with pytest.raises(ConfigError, match="scale"):
        factors(KernelCode.SUM, dtypes.by_name("int64"), 0.5)
    with pytest.raises(ConfigError, match="scale"):
        factors(KernelCode.REPLACE, dtypes.by_name("int64"), 2)
    for scale in (float("nan"), 1e39):
        with pytest.raises(ConfigError, match="scale"):
            factors(KernelCode.ELASTIC, dtypes.by_name("float32"), scale)
    with pytest.raises(ConfigError, match="scale"):
        factors(KernelCode.REPLACE, dtypes.by_name("float32"), 0.5)


def test_terms_are_what_compiled_code_is_told():
    terms = terms_of(KernelCode.SUM, dtypes.by_name("float32"), 0.5)
    assert terms == (Mode.SUM_FLOAT32, KernelCode.SUM, 0.5, 1)
    assert [type(value) for value in terms] == [int, int, float, int]  # an enum is slow there


def test_a_kernel_without_a_twin_has_no_terms():
    assert terms_of(KernelCode.MIN, dtypes.by_name("float32"), 1) is None
    assert terms_of(KernelCode.SUM, dtypes.by_name("int8"), 1) is None


def test_terms_refuse_what_scale_of_refuses():
    with pytest.raises(ConfigError, match="scale"):
        terms_of(KernelCode.SUM, dtypes.by_name("int64"), 0.5)


@pytest.mark.parametrize("dtype", dtypes.TABLE, ids=str)
@pytest.mark.parametrize("shape", [(), (0,), (5,), (2, 3)])
def test_flat_is_a_view_of_all_bytes(dtype: dtypes.DType, shape: tuple[int, ...]):
    array = np.zeros(shape, dtype.numpy)
    found = flat(array)
    assert found.shape == (array.nbytes,)
    assert found.dtype == np.uint8
    assert np.shares_memory(found, array) or array.size == 0


def test_flat_refuses_to_copy():
    with pytest.raises(ConfigError, match="contiguous"):
        flat(np.zeros((4, 4))[:, 1:])

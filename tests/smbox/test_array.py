"""Arrays as arguments: accepted values, and values refused before anything is sent."""

from __future__ import annotations

import array

import ml_dtypes
import numpy as np
import pytest

import smbox.array as arrays
from smbox.array import as_bytes, bytes_of, output_array, register_adapter, source_array
from smbox.errors import LayoutMismatchError

F32 = np.dtype("float32")
I64 = np.dtype("int64")


class Duck:
    """Has only __array__."""

    def __init__(self, values, dtype="float32"):
        self.values = np.array(values, dtype)

    def __array__(self, dtype=None, copy=None):
        return self.values


class Shy:
    """Its __array__ raises, as that of a tensor that requires grad does."""

    def __array__(self, dtype=None, copy=None):
        raise RuntimeError("call detach() first")


class Tensor:
    def __init__(self, values):
        self.values = values


class Parameter(Tensor):
    pass


@pytest.fixture
def adapters(monkeypatch):
    monkeypatch.setattr(arrays, "_ADAPTERS", {})
    register_adapter(Tensor, lambda tensor: tensor.values)


def test_an_array_is_taken_as_it_is():
    x = np.arange(4, dtype=F32)
    assert source_array(x, F32, (4,)) is x
    assert output_array(x, F32, (4,)) is x


def test_a_read_only_array_is_a_source_and_no_output():
    x = np.arange(4, dtype=F32)
    x.flags.writeable = False
    assert source_array(x, F32, (4,)) is x
    with pytest.raises(LayoutMismatchError, match="read-only"):
        output_array(x, F32, (4,))


def test_a_strided_array_is_a_source_and_no_output():
    x = np.arange(8, dtype=F32)[::2]
    source = source_array(x, F32, (4,))
    assert source.flags.c_contiguous
    assert (source == x).all()
    with pytest.raises(LayoutMismatchError, match="contiguous"):
        output_array(x, F32, (4,))


@pytest.mark.parametrize(
    "value", [np.zeros(4), np.zeros(4, ">f4"), np.zeros(4, "int32"), Duck([1, 2, 3, 4], "int8")]
)
def test_another_dtype_is_refused(value):
    with pytest.raises(LayoutMismatchError, match="dtype"):
        source_array(value, F32, (4,))


@pytest.mark.parametrize("shape", [(), (3,), (4, 1), (2, 2)])
def test_another_shape_is_refused(shape):
    with pytest.raises(LayoutMismatchError, match="shape"):
        source_array(np.zeros(4, F32), F32, shape)


@pytest.mark.parametrize("dtype", ["float64", ml_dtypes.bfloat16, "int16"])
def test_only_float32_takes_narrower_floats(dtype):
    half = np.zeros(2, np.float16)
    assert source_array(half, F32, (2,), may_be_narrower=True) is half
    with pytest.raises(LayoutMismatchError, match="another dtype"):
        source_array(half, np.dtype(dtype), (2,), may_be_narrower=True)


def test_buffers_are_arrays_of_their_own_type():
    assert source_array(b"abc", np.dtype("uint8"), (3,)).tolist() == [97, 98, 99]
    typed = array.array("f", [1.0, 2.0])
    output_array(typed, F32, (2,))[0] = 5.0
    assert typed[0] == 5.0
    with pytest.raises(LayoutMismatchError, match="read-only"):
        output_array(b"abc", np.dtype("uint8"), (3,))


def test_subclasses_of_numpys_arrays_are_plain_arrays_on_the_same_memory():
    values = np.zeros(2, F32).view(np.recarray)
    assert type(source_array(values, F32, (2,))) is np.ndarray
    output_array(values, F32, (2,))[0] = 5.0
    assert values[0] == 5.0


def test_array_protocol_is_a_source_and_no_output():
    assert source_array(Duck([1, 2]), F32, (2,)).tolist() == [1, 2]
    with pytest.raises(TypeError, match="register_adapter"):
        output_array(Duck([1, 2]), F32, (2,))


def test_what_refuses_to_be_an_array_names_the_adapter():
    with pytest.raises(TypeError, match=r"import smbox_torch.*detach"):
        source_array(Shy(), F32, (2,))


def test_an_adapter_shares_memory_for_subclasses_too(adapters):
    values = np.zeros(3, F32)
    assert source_array(Parameter(values), F32, (3,)) is values
    output_array(Parameter(values), F32, (3,))[:] = 1
    assert values.tolist() == [1, 1, 1]


@pytest.mark.parametrize(
    ("value", "dtype"),
    [
        (3, "int8"),
        ([1, 2.0], "int64"),
        ([0.1, 0.2], "float32"),
        ([float("inf"), float("nan")], "float16"),
        ([1, 2], "float32"),
        ([True, False], "bool"),
        (2**63, "uint64"),
        (-(2**63), "float32"),
        ([], "float32"),
        ([[1, 2], [3, 4]], "uint16"),
    ],
)
def test_numbers_take_the_dtype(value, dtype):
    taken = source_array(value, np.dtype(dtype), np.shape(value))
    assert taken.dtype == dtype
    np.testing.assert_array_equal(taken, np.array(value, dtype))


def test_numbers_take_bfloat16():
    dtype = np.dtype(ml_dtypes.bfloat16)
    assert source_array([1.5, 2], dtype, (2,)).dtype == dtype


@pytest.mark.parametrize(
    ("value", "dtype"),
    [
        (300, "int8"),
        (-1, "uint64"),
        (-1, "uint8"),
        (0.5, "int64"),
        (2**24 + 1, "float32"),
        (1e300, "float32"),
        (1, "bool"),
        (True, "int64"),
        (float("nan"), "int64"),
        (2**63, "int64"),
        (-(2**63), "float16"),  # both casts give -2**63: to float16 and back
        ([-(2**63), 1], "float16"),
        (2**63 + 1, "float32"),
        (257, ml_dtypes.bfloat16),
        (10**30, "int64"),
        ([10**30, 1], "float64"),
        pytest.param(10**400, "float32", id="400 digits"),
        ([2**53 + 1, 1.0], "int64"),  # numpy makes floats of both, and rounds the first
    ],
)
def test_numbers_that_would_change_are_refused(value, dtype):
    with pytest.raises(LayoutMismatchError, match="do not fit"):
        source_array(value, np.dtype(dtype), np.shape(value))


@pytest.mark.parametrize("value", ["text", object(), [1, "a"], [[1], [1, 2]], None, 1j])
def test_no_array_is_a_type_error(value):
    with pytest.raises(TypeError, match="no array"):
        source_array(value, F32, ())


def test_as_bytes_shares_memory():
    x = np.zeros((), F32)
    as_bytes(x)[:] = 255
    assert np.isnan(x)
    assert as_bytes(np.zeros((0, 3), I64)).size == 0


def test_bytes_of_needs_a_dtype():
    assert bytes_of(np.array([[1, 2]], "<u2").T).tolist() == [1, 0, 2, 0]
    with pytest.raises(TypeError, match="dtype"):
        bytes_of([1, 2])


@pytest.mark.parametrize("by_name", [False, True])
def test_an_adapter_comes_before_the_buffer_protocol(adapters, by_name):
    class Bytes(bytearray):
        pass

    kind = f"{Bytes.__module__}.{Bytes.__qualname__}" if by_name else Bytes
    register_adapter(kind, lambda value: np.zeros(len(value), F32))
    assert bytes_of(Bytes(b"abc")).size == 12

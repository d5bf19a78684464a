from __future__ import annotations

import builtins
import copy

import numpy as np
import pytest

from smbox import dtypes
from smbox.errors import ConfigError


@pytest.mark.parametrize("dtype", dtypes.TABLE, ids=str)
def test_names_codes_and_numpy_types_lead_to_one_another(dtype: dtypes.DType):
    assert dtypes.by_name(dtype.name) is dtype
    assert dtypes.by_code(dtype.code) is dtype
    assert dtypes.of(dtype.numpy) is dtype
    assert dtype.numpy.itemsize == dtype.itemsize


def test_codes_are_those_that_headers_hold():
    assert {dtype.name: dtype.code for dtype in dtypes.TABLE} == {
        "bool": 1,
        "int8": 2,
        "int16": 3,
        "int32": 4,
        "int64": 5,
        "uint8": 6,
        "uint16": 7,
        "uint32": 8,
        "uint64": 9,
        "float16": 10,
        "bfloat16": 11,
        "float32": 12,
        "float64": 13,
    }


def test_kinds_are_what_numpy_says():
    kinds = {"b": "bool", "i": "int", "u": "uint", "f": "float"}
    for dtype in dtypes.TABLE:
        if dtype.name != "bfloat16":  # numpy calls a foreign type "V"
            assert kinds[dtype.numpy.kind] == dtype.kind


@pytest.mark.parametrize("name", ["complex64", "float", "f4", "", "FLOAT32"])
def test_an_unknown_name_is_refused_with_the_known_ones(name: str):
    with pytest.raises(ConfigError, match="float32"):
        dtypes.by_name(name)


@pytest.mark.parametrize("code", [0, 14, -1])
def test_an_unknown_code_is_refused(code: int):
    with pytest.raises(ConfigError, match="code"):
        dtypes.by_code(code)


@pytest.mark.parametrize("text", [">f4", "U3", "c8", "O", "M8[s]"])
def test_what_no_region_can_hold_is_refused(text: str):
    with pytest.raises(ConfigError):
        dtypes.of(np.dtype(text))


def test_bfloat16_without_its_library_names_the_extra(monkeypatch: pytest.MonkeyPatch):
    real = builtins.__import__

    def without(name: str, *args: object, **kwargs: object) -> object:
        if name == "ml_dtypes":
            raise ImportError(name)
        return real(name, *args, **kwargs)

    fresh = copy.copy(dtypes.by_name("bfloat16"))  # the table's may know its numpy dtype
    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ConfigError, match=r"smbox\[bf16\]"):
        _ = fresh.numpy
    monkeypatch.undo()
    assert fresh.numpy.itemsize == 2

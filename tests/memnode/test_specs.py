from __future__ import annotations

import math

import pytest

from memnode import specs
from smbox import dtypes
from smbox.errors import ConfigError, LimitError
from smbox.memory.layout import RegionKind
from smbox.wire.messages import Create

FLOAT32 = dtypes.by_name("float32")
TOKEN = bytes(range(16))


def create(**fields):
    return Create(
        **({"name": "w", "dtype": "float32", "shape": (4, 2), "token": TOKEN} | fields)
    )


def test_a_create_becomes_a_spec():
    spec = specs.spec_of(create())
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
        specs.spec_of(create(**fields))


def test_counters_and_barriers():
    assert specs.spec_of(create(kind=2, dtype="int64", shape=())).kind == RegionKind.COUNTER
    assert specs.spec_of(create(kind=3, dtype="uint64", shape=(7,))).kind == RegionKind.BARRIER


@pytest.mark.parametrize(
    ("dtype", "init"),
    [("float32", 0.1), ("float32", math.nan), ("int8", -128), ("uint8", 255.0), ("bool", True)],
)
def test_inits(dtype, init):
    specs.check_init(dtypes.by_name(dtype), init)


@pytest.mark.parametrize(
    ("dtype", "init"),
    [("int8", 128), ("uint8", -1), ("int32", 0.5), ("int64", math.inf), ("bool", 2)],
)
def test_inits_that_do_not_fit(dtype, init):
    with pytest.raises(ConfigError):
        specs.check_init(dtypes.by_name(dtype), init)


@pytest.mark.parametrize("consistency", [0, 2, 4])
def test_a_consistency_that_is_unknown_is_told(consistency):
    with pytest.raises(ConfigError, match="consistency is one of stripe, none"):
        specs.spec_of(create(consistency=consistency))


def test_an_empty_shape_is_no_excuse_for_a_length_that_no_array_has():
    with pytest.raises(LimitError, match="address"):
        specs.spec_of(Create(name="w", dtype="float32", shape=(0, 1 << 62), token=bytes(16)))

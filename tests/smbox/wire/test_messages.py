"""The control bodies: limits, defaults, and room for later releases."""

from __future__ import annotations

import msgspec
import pytest

from smbox.memory.layout import NAME_NBYTES_MAX, SHAPE_NDIM_MAX, Consistency, RegionKind
from smbox.wire import messages

ID = bytes(16)
WRONG = [
    (messages.Hello, {"client_id": b"short", "channel": 1}),
    (messages.Hello, {"client_id": ID, "channel": 1 << 32}),
    (messages.Hello, {"client_id": ID, "channel": 1, "proof": bytes(33)}),
    (messages.Create, {"name": "", "dtype": "int8", "shape": [], "token": ID}),
    (messages.Create, {"name": "n" * 201, "dtype": "int8", "shape": [], "token": ID}),
    (messages.Create, {"name": "n", "dtype": "int8", "shape": [-1], "token": ID}),
    (messages.Create, {"name": "n", "dtype": "int8", "shape": [1] * 9, "token": ID}),
    (messages.Create, {"name": "n", "dtype": "int8", "shape": [], "token": b""}),
    (messages.Create, {"name": "n", "dtype": "int8", "shape": [], "token": ID, "kind": 0}),
    (messages.Create, {"name": "n", "dtype": "int8", "shape": [], "token": ID, "init": "0"}),
    (messages.Free, {"address": -1}),
    (messages.ListRegions, {"limit": 1001}),
    (messages.Publish, {}),
]


@pytest.mark.parametrize(("kind", "fields"), WRONG)
def test_what_breaks_a_limit_is_refused(kind, fields):
    with pytest.raises(msgspec.ValidationError):
        msgspec.msgpack.decode(msgspec.msgpack.encode(fields), type=kind)


def test_names_of_later_releases_are_ignored():
    body = msgspec.msgpack.encode({"address": 4, "colour": "red"})
    assert msgspec.msgpack.decode(body, type=messages.Free) == messages.Free(address=4)


@pytest.mark.parametrize("init", [None, True, -3, 2**64 - 1, 0.5])
def test_init_keeps_its_type(init):
    body = messages.Create(name="n", dtype="int8", shape=(), token=ID, init=init)
    found = msgspec.msgpack.decode(msgspec.msgpack.encode(body), type=messages.Create)
    assert found == body
    assert type(found.init) is type(init)


def test_defaults_and_limits_are_those_of_the_memory():
    assert (messages.ARRAY, messages.STRIPE) == (RegionKind.ARRAY, Consistency.STRIPE)
    assert (NAME_NBYTES_MAX, SHAPE_NDIM_MAX) == (200, 8)

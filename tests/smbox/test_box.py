"""Box and connect: settings, names, raw addresses, closing; verbs are in tests/contracts."""

from __future__ import annotations

import math
import pickle

import numpy as np
import pytest

import smbox
from smbox import connecting
from smbox.box import Box
from smbox.config import ClientConfig
from smbox.connecting import connect
from smbox.errors import (
    AddressRangeError,
    ConfigError,
    ConnectError,
    LayoutMismatchError,
    RegionNotFoundError,
    RequestTimeoutError,
)
from smbox.paths.pair import PathPair
from smbox.testing.contract_tools import in_threads
from smbox.testing.solo import solo_box

NOBODY = "tcp://127.0.0.1:9"


class Recorded(Exception):
    """Stops a connection before it is opened; holds its settings."""


@pytest.fixture
def settings(monkeypatch):
    for name in ("SMBOX_ADDRESS", "SMBOX_TRANSPORT", "SMBOX_TIMEOUT_S"):
        monkeypatch.delenv(name, raising=False)

    def record(config):
        raise Recorded(config)

    monkeypatch.setattr(connecting, "PathPair", lambda config: PathPair(config, record))

    def ask(*arguments, **named):
        with pytest.raises(Recorded) as caught:
            connect(*arguments, **named)
        return caught.value.args[0]

    return ask


def test_settings_come_from_arguments(settings):
    config = settings(NOBODY, transport="tcp", timeout_s=3.0)
    assert (config.address, config.transport, config.timeout_s) == (NOBODY, "tcp", 3.0)


def test_settings_come_from_the_environment(settings, monkeypatch):
    monkeypatch.setenv("SMBOX_ADDRESS", NOBODY)
    monkeypatch.setenv("SMBOX_TRANSPORT", "shm")
    config = settings()
    assert (config.address, config.transport) == (NOBODY, "shm")
    assert settings(transport="auto").transport == "auto"


def test_settings_have_defaults(settings):
    assert settings(NOBODY) == ClientConfig(NOBODY)


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"address": "http://x"},
        {"address": NOBODY, "transport": "rdma"},
        {"address": NOBODY, "timeout_s": 0.0},
        {"address": NOBODY, "key": "secret"},
    ],
)
def test_settings_that_cannot_work(monkeypatch, arguments):
    monkeypatch.delenv("SMBOX_ADDRESS", raising=False)
    with pytest.raises(ConfigError):
        connect(**arguments)


def test_nobody_there():
    with pytest.raises(ConnectError):
        connect(NOBODY, timeout_s=0.2)


def test_a_box_tells_how_it_is_connected(solo, box):
    assert box.transport == "shm"
    assert box.transport_reason == "this process owns the memory"
    assert box.address == solo.control.address
    assert box.node == solo.control.node
    assert repr(box) == f"Box({solo.control.address!r})"
    assert box.stats()["memory_used_nbytes"] > 0


def test_attach_waits_for_who_creates(solo, box):
    def job(index):
        with solo_box(solo) as other:
            if index == 0:
                assert other.attach("late", timeout_s=60.0).get().tolist() == [1, 2]
            else:
                other.create("late", init=[1.0, 2.0])

    in_threads(2, job)
    with pytest.raises(RegionNotFoundError):
        box.attach("never", timeout_s=0.0)


def test_names_of_kinds_live_apart(box):
    box.counter("x")
    box.barrier("x", 1)
    region = box.create("x", shape=(2,))
    assert [info.name for info in box.regions()] == ["x"] * 3
    box.free("x")
    assert region.info not in box.regions()
    with pytest.raises(RegionNotFoundError):
        box.free("x")


def test_raw_addresses_are_checked(box):
    region = box.create("some", init=np.arange(4, dtype=np.int32))
    box.put(region[1:2].address, np.int32(9))
    assert box.get(region.address, 16).view(np.int32).tolist() == [0, 9, 2, 3]
    assert box.get(region.address, 0).size == 0
    for first, nbytes in ((0, -4), (0, 20), (0, 3), (2, 4)):
        with pytest.raises(AddressRangeError):
            box.get(region.address + first, nbytes)
    with pytest.raises(AddressRangeError):
        box.put(region.address + 12, np.zeros(2, np.int32))
    with pytest.raises(TypeError, match="dtype"):
        box.put(region.address, [1, 2])


def test_flush_that_cannot_end_tells_so(box, held):
    region = box.create("some", shape=(4,))
    with held(region):
        region.put_nb(np.ones(4, np.float32))
        with pytest.raises(RequestTimeoutError) as caught:
            box.flush(timeout_s=0.01)
        assert caught.value.facts["op"] == "flush"
    box.flush()
    assert region.get().tolist() == [1, 1, 1, 1]


def test_closing_twice_is_no_error_and_using_is(box):
    with box:
        region = box.create("some", shape=(4,))
    box.close()
    for use in (box.regions, box.flush, region.get, lambda: box.attach("some"), box.stats):
        with pytest.raises(ConfigError, match="closed"):
            use()


def test_a_bad_shape_for_a_name_that_is_taken(box):
    box.create("some", shape=(4,))
    with pytest.raises(LayoutMismatchError):
        box.create("some", shape=(5,), exist_ok=True)


def test_a_box_and_what_it_hands_out_travel_together():
    """Objects pickled separately share one connection again; unpickling opens none."""
    one, two = map(pickle.loads, 2 * [pickle.dumps(Box(PathPair(ClientConfig(NOBODY))))])
    one.close()
    with pytest.raises(ConfigError, match="closed"):
        two.regions()


def test_free_takes_no_part_of_a_region(box):
    region = box.create("some", shape=(4,))
    with pytest.raises(ConfigError, match="slice"):
        box.free(region[1:3])
    assert region.get().tolist() == [0] * 4
    box.free(region[:])


ONES = np.ones(4, np.float32)

WRONG_TYPES = {
    "from": lambda box, r: r.accumulate_from(None),
    "dot": lambda box, r: r.dot(ONES),
    "address of get": lambda box, r: box.get("x", 8),
    "nbytes": lambda box, r: box.get(r.address, "x"),
    "address of put": lambda box, r: box.put("x", ONES),
    "free": lambda box, r: box.free(None),
    "free a number": lambda box, r: box.free(int(r.address)),
    "counter": lambda box, r: box.counter("c", "x"),
    "parties": lambda box, r: box.barrier("b", None),
    "optimizer": lambda box, r: box.optimizer(None, "adam", lr=0.1),
    "batch": lambda box, r: box.batch().put(None, ONES),
    "rows": lambda box, r: r.rows(None),
    "wait": lambda box, r: r.wait("x"),
    "put": lambda box, r: r.put(None),
    "out": lambda box, r: r.get(out="x"),
    "connect": lambda box, r: connect(5),
}


@pytest.mark.parametrize("name", WRONG_TYPES)
def test_a_wrong_type_is_a_type_error_with_a_message(box, name):
    region = box.create("r", init=ONES)
    with pytest.raises(TypeError, match=r"\w+ \w+"):
        WRONG_TYPES[name](box, region)
    assert region.get().tolist() == [1] * 4


TIMED = {
    "put": lambda box, r, t: r.put(2 * ONES, timeout_s=t),
    "get": lambda box, r, t: r.get(timeout_s=t),
    "snapshot": lambda box, r, t: r.get(snapshot=True, timeout_s=t),
    "accumulate": lambda box, r, t: r.accumulate(ONES, timeout_s=t),
    "elastic": lambda box, r, t: r.elastic(2 * ONES, 0.5, timeout_s=t),
    "fetch": lambda box, r, t: r.fetch_and_op(ONES, timeout_s=t),
    "from": lambda box, r, t: r.accumulate_from(r, timeout_s=t),
    "scale": lambda box, r, t: r.scale(2.0, timeout_s=t),
    "dot": lambda box, r, t: r.dot(r, timeout_s=t),
    "empty": lambda box, r, t: r[:0].put(ONES[:0], timeout_s=t),
    "wait": lambda box, r, t: r.wait(0, timeout_s=t),
    "rows put": lambda box, r, t: r.rows([1]).put([5.0], timeout_s=t),
    "rows add": lambda box, r, t: r.rows([1]).accumulate([5.0], timeout_s=t),
    "rows get": lambda box, r, t: r.rows([1]).get(timeout_s=t),
    "handle": lambda box, r, t: r.get_nb().wait(t),
    "batch": lambda box, r, t: box.batch(timeout_s=t),
    "box put": lambda box, r, t: box.put(r.address, 2 * ONES, timeout_s=t),
    "box get": lambda box, r, t: box.get(r.address, 4, timeout_s=t),
    "flush": lambda box, r, t: box.flush(timeout_s=t),
    "create": lambda box, r, t: box.create("fresh", 4, timeout_s=t),
    "fill": lambda box, r, t: box.create("fresh", init=ONES, timeout_s=t),
    "barrier": lambda box, r, t: box.barrier("fresh", 1, timeout_s=t),
    "count": lambda box, r, t: box.counter("c").wait(0, timeout_s=t),
    "add": lambda box, r, t: box.counter("c").add(timeout_s=t),
    "swap": lambda box, r, t: box.counter("c").compare_and_swap(0, 1, timeout_s=t),
    "step": lambda box, r, t: box.optimizer(r, "momentum", lr=1).step(ONES, timeout_s=t),
    "connect": lambda box, r, t: connect(NOBODY, timeout_s=t),
}


@pytest.mark.parametrize("timeout_s", [float("nan"), np.float32("nan"), "5", [1]])
@pytest.mark.parametrize("name", TIMED)
def test_a_timeout_that_is_no_number_is_refused_before_anything_happens(box, name, timeout_s):
    region, counter = box.create("r", init=ONES), box.counter("c")
    with pytest.raises(ConfigError, match="number of seconds"):
        TIMED[name](box, region, timeout_s)
    assert region.get().tolist() == [1] * 4
    assert counter.value == 0
    assert "fresh" not in [info.name for info in box.regions()]


def test_any_kind_of_number_is_a_timeout(box):
    region = box.create("r", init=ONES)
    for timeout_s in (1, 1.0, np.float32(1), np.int64(1), float("inf")):
        region.put(ONES, timeout_s=timeout_s)


@pytest.mark.parametrize("name", [None, 5, [], b"r"])
@pytest.mark.parametrize(
    "verb",
    [
        lambda box, name: box.create(name, 4),
        lambda box, name: box.create(name, init=[1.0]),
        lambda box, name: box.create(name, 4, layout="striped"),
        lambda box, name: box.attach(name, timeout_s=0.0),
        lambda box, name: box.counter(name),
        lambda box, name: box.barrier(name, 1),
        lambda box, name: box.lock(name),
        lambda box, name: box.free(name),
        smbox.join,
    ],
)
def test_a_name_is_a_str(boxes, verb, name):
    box = boxes()
    with pytest.raises(TypeError, match="name"):
        verb(box, name)
    assert box.regions() == []


def test_waiting_for_no_number_of_seconds_is_nonsense(boxes):
    box = boxes()
    for verb in (
        lambda: box.attach("w", timeout_s=math.nan),
        lambda: box.create("w", 4, timeout_s=math.nan),
    ):
        with pytest.raises(ConfigError, match="number of seconds"):
            verb()


def test_a_region_that_is_not_waited_for_is_asked_for_as_long_as_the_box_waits(node, boxes):
    box = boxes(config=ClientConfig("inproc://node", timeout_s=0.2))
    region = box.create("w", 4)
    assert box.attach("w", timeout_s=None).info == region.info
    with pytest.raises(RegionNotFoundError):
        box.attach("v", timeout_s=None)
    node.is_down = True
    with pytest.raises(RequestTimeoutError) as caught:
        box.attach("w", timeout_s=None)
    node.is_down = False
    assert caught.value.facts["timeout_s"] == 0.2

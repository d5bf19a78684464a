"""What a region is made from, and who wins when many make it."""

from __future__ import annotations

import math
import time
from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest

from smbox import deadline
from smbox.dtypes import by_name
from smbox.errors import (
    ConfigError,
    LayoutMismatchError,
    OutOfMemoryError,
    RegionExistsError,
    RegionFreedError,
)
from smbox.memory.layout import Consistency, RegionState
from smbox.paths.creating import describe
from smbox.paths.pair import PathPair
from smbox.testing.faults import FaultScript
from smbox.wire import header
from smbox.wire.codec import decode_request
from smbox.wire.ops import Op

F32 = np.ones(3, np.float32)


@pytest.mark.parametrize(
    ("arguments", "layout", "init"),
    [
        (((4,), None, None), ("float32", (4,)), None),
        ((4, "int8", None), ("int8", (4,)), None),
        ((np.int64(4), np.uint16, 7), ("uint16", (4,)), 7),
        (((2, 2), by_name("bool"), True), ("bool", (2, 2)), True),
        (((2,), None, np.float64(0.1)), ("float32", (2,)), float(np.float32(0.1))),
        (([2, 3], "float64", 0.1), ("float64", (2, 3)), 0.1),
    ],
)
def test_scalars(arguments, layout, init):
    request, values = describe("some", *arguments, "stripe")
    assert (request.dtype.name, request.shape) == layout
    assert request.init == init
    assert type(request.init) is type(init)
    assert values is None


@pytest.mark.parametrize(
    ("arguments", "layout"),
    [
        ((None, None, F32), ("float32", (3,))),
        ((None, None, np.zeros((2, 2), np.int8)), ("int8", (2, 2))),
        ((None, "float64", [1, 2]), ("float64", (2,))),
        ((None, None, [[1], [2]]), ("float32", (2, 1))),
        ((None, None, b"abc"), ("uint8", (3,))),
    ],
)
def test_arrays(arguments, layout):
    request, values = describe("some", *arguments, "none")
    assert (request.dtype.name, request.shape) == layout
    assert request.consistency == Consistency.NONE
    assert (values.dtype, values.shape) == (request.dtype.numpy, request.shape)


@pytest.mark.parametrize(
    "arguments",
    [
        (None, None, None, "stripe"),
        ((2.5,), None, None, "stripe"),
        ((-1,), None, None, "stripe"),
        ((3, -1), None, None, "stripe"),
        (2.7, None, None, "stripe"),
        ((math.nan,), None, None, "stripe"),
        ((math.inf,), None, None, "stripe"),
        ("ab", None, None, "stripe"),
        ((1,), object, None, "stripe"),
        ((1,), "text", None, "stripe"),
        ((1,), np.dtype(">f4"), None, "stripe"),
        ((1,), ["a"], None, "stripe"),
        ((1,), None, None, "sometimes"),
    ],
)
def test_nonsense(arguments):
    with pytest.raises(ConfigError):
        describe("some", *arguments)


@pytest.mark.parametrize(
    ("shape", "dtype", "init"), [((2,), None, F32), ((3,), "int8", F32), ((3,), "int8", 0.5)]
)
def test_contents_that_do_not_fit(shape, dtype, init):
    with pytest.raises(LayoutMismatchError):
        describe("some", shape, dtype, init, "stripe")


def test_what_cannot_be_filled_leaves_nothing(solo, box, monkeypatch):
    def no_room(*_):
        raise OutOfMemoryError("no room")

    monkeypatch.setattr(PathPair, "finish", no_room)
    with pytest.raises(OutOfMemoryError):
        box.create("some", init=F32)
    assert solo.control.memory.regions == {}


@pytest.mark.parametrize("op", [Op.CREATE, Op.PUT, Op.PUBLISH])
def test_what_is_interrupted_leaves_no_unpublished_region(node, boxes, op):
    """The node has done the request, and the caller never gets its reply."""
    is_over = []

    class Interrupted:
        """A connection whose reply to one request is an interrupt."""

        def __init__(self) -> None:
            self._inner, self._asked = node.connect(), None

        def __getattr__(self, name):
            return getattr(self._inner, name)

        def send(self, frames):
            self._asked = decode_request([bytes(frame) for frame in frames]).op
            return self._inner.send(frames)

        def receive(self, timeout_s):
            frames = self._inner.receive(timeout_s)
            if frames is not None and self._asked == op and not is_over:
                is_over.append(op)
                raise KeyboardInterrupt
            return frames

    box = boxes(Interrupted)
    with pytest.raises(KeyboardInterrupt):
        box.create("some", init=F32)
    assert is_over == [op]
    assert [region.name for region in box.regions()] == ["some"] * (op == Op.PUBLISH)
    assert len(node.memory.regions) == (op == Op.PUBLISH)  # others may use it already
    assert box.create("some", init=F32, exist_ok=True).get().tolist() == [1, 1, 1]


def test_a_region_is_seen_only_when_it_is_filled(solo, box, monkeypatch):
    seen = []
    publish = solo.control.publish

    def look(info, timeout_s):
        seen.append([known.name for known in box.regions()])
        publish(info, timeout_s)

    monkeypatch.setattr(solo.control, "publish", look)
    assert box.create("some", init=F32).get().tolist() == [1, 1, 1]
    assert seen == [[]]


@pytest.mark.parametrize("step", ["create", "publish"])
def test_who_is_slower_takes_what_is_there(solo, box, monkeypatch, step):
    """Another creates the region before our step, which is past our deadline."""
    plain = getattr(solo.control, step)

    def late(*args, **more):
        monkeypatch.setattr(solo.control, step, plain)
        box.create("some", init=F32 * 2)
        time.sleep(0.02)
        return plain(*args, **more)

    monkeypatch.setattr(solo.control, step, late)
    made = box.create("some", init=F32, exist_ok=True, timeout_s=0.01)
    assert made.get().tolist() == [2, 2, 2]
    assert len(solo.control.memory.regions) == 1


@pytest.mark.parametrize("timeout_s", [None, 0.01])
def test_who_lost_to_a_region_that_was_freed_since_creates_its_own_in_time(
    solo, box, monkeypatch, timeout_s
):
    publish = solo.control.publish

    def lost(info, timeout_s):
        monkeypatch.setattr(solo.control, "publish", publish)
        solo.control.free(info.address, timeout_s)
        time.sleep(0.02)
        raise RegionExistsError(
            "another client had published it, and has freed it", name="some"
        )

    monkeypatch.setattr(solo.control, "publish", lost)
    with pytest.raises(RegionExistsError) if timeout_s else nullcontext():
        made = box.create("some", init=F32, exist_ok=True, timeout_s=timeout_s)
        assert made.get().tolist() == [1, 1, 1]


class Kill:
    """Restarts a node once, when the first message of an op reaches it; its answer is lost."""

    def __init__(self, node, op, *, is_handled):
        self._node, self._op, self._is_handled = node, op, is_handled
        self._handler, node.hub.handler = node.hub.handler, self._handle
        self.unpublished = None

    def _handle(self, connection, frames):
        if (
            self.unpublished is not None
            or not frames
            or header.unpack(frames[0])[2] != self._op
        ):
            return self._handler(connection, frames)
        if self._is_handled:
            self._handler(connection, frames)
        regions = self._node.memory.regions.values()
        self.unpublished = sum(region.state == RegionState.BUILDING for region in regions)
        self._node.restart()
        return []


@pytest.mark.parametrize("exist_ok", [False, True])
@pytest.mark.parametrize(
    ("op", "is_handled", "unpublished"),
    [
        (Op.CREATE, False, 0),
        (Op.PUT, False, 1),
        (Op.PUT, True, 1),
        (Op.PUBLISH, False, 1),
        (Op.PUBLISH, True, 0),
    ],
)
def test_a_restart_of_the_node_is_not_noticed(
    node, boxes, op, is_handled, unpublished, exist_ok
):
    box = boxes()
    kill = Kill(node, op, is_handled=is_handled)
    assert box.create("some", init=F32, exist_ok=exist_ok).get().tolist() == [1, 1, 1]
    assert kill.unpublished == unpublished
    assert len(node.memory.regions) == 1


def test_a_region_that_was_freed_meanwhile_is_not_made_again(node, boxes):
    """PUBLISH is done, its answer lost, and another frees the region before it is repeated."""
    script = FaultScript().cut(Op.PUBLISH, side="reply")
    other = boxes()

    def connect():
        if script.is_over() and other.regions():
            other.free(other.attach("some"))
        return node.connect()

    box = boxes(script.around(connect))
    with pytest.raises(RegionFreedError):
        box.create("some", init=F32)
    assert node.memory.regions == {}


def test_restarts_without_end_are_an_error_in_the_end(node, boxes, monkeypatch):
    box = boxes()
    now, change = [0.0], PathPair.finish

    def kill(*arguments):
        now[0] += 1.0
        node.restart()
        return change(*arguments)

    monkeypatch.setattr(PathPair, "finish", kill)
    monkeypatch.setattr(deadline, "time", SimpleNamespace(monotonic=lambda: now[0]))
    with pytest.raises(RegionFreedError):
        box.create("some", init=F32, timeout_s=2.5)
    assert now[0] == 3.0
    assert node.memory.regions == {}


@pytest.mark.parametrize("told", [None, 2.5])
def test_filling_has_the_time_that_was_given_or_the_boxes_own(boxes, monkeypatch, told):
    box = boxes()
    given, change = [], PathPair.finish

    def look(paths, request, timeout_s):
        given.append(timeout_s)
        return change(paths, request, timeout_s)

    monkeypatch.setattr(PathPair, "finish", look)
    box.create("some", init=F32, timeout_s=told)
    assert given == [pytest.approx(told, abs=1.0)]  # None: anew as long as the filling gets on


def test_a_restart_after_long_filling_is_not_noticed_either(node, boxes, monkeypatch):
    box = boxes()
    now, change, fills = [0.0], PathPair.finish, []

    def slow(*arguments):
        now[0] += 1e6  # far beyond the timeout of the box
        fills.append(1)
        if len(fills) == 1:
            node.restart()
        return change(*arguments)

    monkeypatch.setattr(PathPair, "finish", slow)
    monkeypatch.setattr(deadline, "time", SimpleNamespace(monotonic=lambda: now[0]))
    region = box.create("some", init=F32)
    assert len(fills) == 2
    np.testing.assert_array_equal(region.get(), F32)

"""Verbs of striped regions; the contract is in tests/contracts/test_many.py."""

from __future__ import annotations

import threading
import time
from collections import deque

import numpy as np
import pytest

from smbox.errors import ConfigError, LayoutMismatchError, RequestTimeoutError
from smbox.many.paths import VERSION_TURN_S
from smbox.wire.codec import decode_request
from smbox.wire.ops import Op

X = np.arange(20, dtype=np.float32).reshape(10, 2)


@pytest.fixture
def region(box):
    return box.create("w", init=X, layout="striped")


def lies(region):
    return [(part.node, part.first_row, part.limit_row) for part in region.parts]


def answer_late(node, delay_s):
    """Let a node answer after a time."""
    handle, late = node.hub.handler, deque()

    def handler(connection, frames):
        now_s = time.monotonic()
        late.extend((now_s + delay_s, answer) for answer in handle(connection, frames))
        while late and late[0][0] <= now_s:
            yield late.popleft()[1]

    node.hub.handler = handler


def test_a_region_is_cut_by_rows_over_all_nodes(region, box):
    assert lies(region) == [(0, 0, 4), (1, 4, 7), (5, 7, 10)]
    assert [part.address.node for part in region.parts] == [0, 1, 5]
    assert not any(part.is_local for part in region.parts)
    for part in region.parts:
        found = box.get(part.address, 8).view(np.float32)
        assert found.tolist() == X[part.first_row].tolist()


def test_a_region_of_few_rows_has_few_parts(box):
    assert lies(box.create("two", shape=(2, 9), layout="striped")) == [(0, 0, 1), (1, 1, 2)]
    assert lies(box.create("none", shape=(0,), layout="striped")) == [(0, 0, 0)]
    scalar = box.create("scalar", init=np.array(3, np.float32), layout="striped")
    assert lies(scalar) == [(0, 0, 1)]
    scalar.accumulate(np.array(2, np.float32))
    assert scalar.get() == 5


def test_a_plain_region_has_one_part(box):
    region = box.create("plain", init=X)
    assert region.parts == ((region.address.node, region.address, 0, 10, False),)
    scalar = box.create("number", init=np.array(3, np.float32))
    assert [part[2:] for part in scalar.parts] == [(0, 1, False)]


def test_a_slice_takes_the_parts_that_it_touches(region):
    assert lies(region[5:]) == [(1, 0, 2), (5, 2, 5)]
    assert lies(region[4:7]) == [(1, 0, 3)]
    assert lies(region[2:9][1:4]) == [(0, 0, 1), (1, 1, 3)]
    assert region[4:].address == region.parts[1].address
    region[3:8].put(np.zeros((5, 2), np.float32))
    wanted = X.copy()
    wanted[3:8] = 0
    assert region.get().tolist() == wanted.tolist()
    assert region[2:9][1:4].get().tolist() == wanted[3:6].tolist()


def test_what_a_change_of_a_slice_returns_is_that_of_the_slice(region):
    part, before, delta = region[2:9], X[2:9], np.empty((7, 2), np.float32)
    assert part.fetch_and_op(before).tolist() == before.tolist()
    x = np.zeros((7, 2), np.float32)
    part.elastic(x, 0.5, delta)
    assert (x.tolist(), delta.tolist()) == ((0 * x).tolist(), (-before).tolist())
    part.elastic(x, 0.5)
    assert x.tolist() == (before / 2).tolist()
    assert part.get().tolist() == (before / 2).tolist()


def test_versions_of_the_parts_add_up(region):
    assert region.version == region[:1].version == 3
    before = region.version
    region.accumulate(X)
    assert region.version == before + 3
    region[:1].accumulate(X[:1])
    assert region[5:].version == before + 4


def test_a_wait_ends_when_the_sum_is_reached(region):
    before = region.version
    with pytest.raises(RequestTimeoutError) as caught:
        region.wait(before + 2, timeout_s=0.05)
    assert caught.value.handle.outcome() == "none"
    found = []
    waiter = threading.Thread(target=lambda: found.append(region.wait(before + 4)))
    waiter.start()
    for _ in range(4):
        region[9:].accumulate(X[9:])
    waiter.join(60)
    assert found == [before + 4]


def test_a_wait_that_ends_keeps_the_connections_to_the_other_nodes(region, team):
    """They were dropped, and each wait was followed by a handshake with every node."""

    def hellos():
        seen = [frames for node_id in (0, 1) for frames in team.nodes[node_id].seen]
        return sum(decode_request(frames).op is Op.HELLO for frames in seen)

    before, version = hellos(), region.version
    change = threading.Timer(0.1, region[9:].accumulate, [X[9:]])
    change.start()
    region.wait(version + 1)
    change.join()
    assert region.get().tolist() == [*X[:9].tolist(), *(2 * X[9:]).tolist()]
    assert hellos() == before


def test_a_wait_ends_at_nodes_that_answer_later_than_its_turn(region, team):
    """Each turn would begin another wait, whose answer comes too late."""
    for node in team.nodes.values():
        answer_late(node, 3 * VERSION_TURN_S)
    version = region.version
    change = threading.Timer(0.2, region[9:].accumulate, [X[9:]])
    change.start()
    assert region.wait(version + 1, timeout_s=10.0) == version + 1
    change.join()


def test_what_is_of_one_moment_or_one_memory_is_of_one_part(region):
    for call in (region.local, lambda: region.get(snapshot=True)):
        with pytest.raises(ConfigError, match="one part") as caught:
            call()
        assert caught.value.facts == {"region": "w", "nodes": [0, 1, 5]}
    with pytest.raises(ConfigError, match="one part"):
        region.get_nb(snapshot=True)
    assert region[4:7].get(snapshot=True).tolist() == X[4:7].tolist()


def test_accumulating_between_equal_layouts(region, box):
    other = box.create("other", init=X, layout="striped")
    region.accumulate_from(other, scale=2.0)
    assert region.get().tolist() == (3 * X).tolist()
    region[2:8].accumulate_from_nb(other[2:8], op="replace").wait()
    assert region[2:8].get().tolist() == X[2:8].tolist()


def test_the_dot_product_is_that_of_all_parts(region, box):
    other = box.create("other", init=2 * X, layout="striped")
    assert region.dot(other) == float((2 * X * X).sum())
    assert region[2:8].dot_nb(other[2:8]).result() == float((2 * X * X)[2:8].sum())
    assert region[:2].dot(other[1:3]) == float((2 * X[:2] * X[1:3]).sum())
    region[1:9].scale(0.5)
    assert region.get().tolist() == [*X[:1].tolist(), *(X[1:9] / 2).tolist(), *X[9:].tolist()]


def test_the_dot_product_of_other_layouts_is_refused(region, box):
    version = region.version
    with pytest.raises(ConfigError, match="same nodes"):
        region.dot(box.create("plain", init=X))
    with pytest.raises(ConfigError, match="same nodes"):
        region[0:4].dot(region[3:7])
    whole = box.create("whole", shape=X.shape, dtype="int32", layout="striped")
    with pytest.raises(ConfigError, match="floats"):
        whole.dot(whole)
    with pytest.raises(ConfigError):
        region.scale(float("nan"))
    assert region.version == version


def test_accumulating_between_other_layouts_is_refused(region, box):
    version = region.version
    plain = box.create("plain", init=X)
    with pytest.raises(ConfigError, match="same nodes"):
        region.accumulate_from(plain)
    with pytest.raises(ConfigError, match="one node"):
        plain.accumulate_from(region)
    with pytest.raises(ConfigError, match="same nodes"):
        region[0:4].accumulate_from(region[3:7])
    with pytest.raises(LayoutMismatchError):
        region.accumulate_from(box.create("long", shape=(11, 2), layout="striped"))
    assert region.version == version


def test_rows_come_in_the_order_of_the_caller(region):
    index = np.array([[9, 0], [4, 9]])
    assert region.rows(index).get().tolist() == X[index].tolist()
    region.rows(index).accumulate(np.ones((2, 2, 2), np.float32))
    wanted = X.copy()
    np.add.at(wanted, index, 1)
    assert region.get().tolist() == wanted.tolist()
    region[3:].rows([6, 0, 6]).put(np.array([[1, 1], [2, 2], [3, 3]], np.float32))
    assert region.rows([9, 3]).get().tolist() == [[3, 3], [2, 2]]
    assert region[3:].rows([6, 0, 2]).get().tolist() == region.get()[[9, 3, 5]].tolist()


def test_only_the_nodes_of_the_rows_are_asked(region, team):
    team.nodes[5].is_down = True
    assert region.rows([6, 1]).get(timeout_s=20.0).tolist() == X[[6, 1]].tolist()


def test_large_transfers_go_on_side_by_side(box):
    x = np.arange(3 << 20, dtype=np.float32)
    region = box.create("large", init=x, layout="striped")
    handle = region.accumulate_nb(x)
    handle.wait(timeout_s=60.0)
    assert handle.ranges_done() == [(0, x.nbytes)]
    moved = np.zeros_like(x)
    region.elastic(moved, 0.5)
    assert np.array_equal(moved, x)


def test_an_optimizer_steps_a_region_only(box):
    with pytest.raises(TypeError, match="steps a region, not str"):
        box.optimizer("w", "adam", lr=0.1)

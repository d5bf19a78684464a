"""A put on one node with a signal on another: the signal follows, once, and never leads."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from smbox.errors import PeerLostError, RegionFreedError, RequestTimeoutError

SHORT_S = 0.3
X = np.arange(12, dtype=np.float32)
LAYOUTS = ["single", "striped"]


@pytest.fixture
def hasty(team):
    return team.box(timeout_s=SHORT_S)


def made(box, team, layout="single"):
    """A region on node 0 (or on all), and a counter on node 1."""
    region = box.create(team.name_on(0), init=np.zeros(12, np.float32), layout=layout)
    return region, box.counter(team.name_on(1, "signal"))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("node_id", [0, 1, 5])
def test_a_signal_is_sent_from_any_node_to_any(team, layout, node_id):
    box = team.box()
    region = box.create(team.name_on(node_id), init=np.zeros(12, np.float32), layout=layout)
    for count, target in enumerate(team.nodes, 1):
        counter = box.counter(team.name_on(target, "signal"))
        region.put(X + count, signal=counter)
        assert counter.value == 1
        assert region.get().tolist() == (X + count).tolist()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_counters_node_is_lost(hasty, team, layout):
    region, counter = made(hasty, team, layout)
    counter.add(-1)  # so that the channel to its node is open
    team.nodes[1].is_down = True
    with pytest.raises(RequestTimeoutError) as caught:
        region.put(X, signal=counter)
    assert caught.value.facts["outcome"] == "unknown"
    team.nodes[1].is_down = False
    outcome = caught.value.handle.outcome(30.0)
    assert outcome in {"all", "partial"}
    assert counter.value == (outcome == "all") - 1
    assert region[:4].get().tolist() == X[:4].tolist()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_regions_node_is_lost(hasty, team, layout):
    region, counter = made(hasty, team, layout)
    team.nodes[0].is_down = True
    handle = region.put_nb(X, signal=counter)
    with pytest.raises(RequestTimeoutError):
        handle.wait()
    assert counter.value == 0
    team.nodes[0].is_down = False
    handle.wait(timeout_s=30.0)
    assert handle.outcome() == "all"
    assert counter.value == 1
    assert region.get().tolist() == X.tolist()


def test_a_blocking_put_that_timed_out_signals_nothing_later(hasty, team):
    region, counter = made(hasty, team)
    team.nodes[0].is_down = True
    with pytest.raises(RequestTimeoutError) as caught:
        region.put(X, signal=counter)
    team.nodes[0].is_down = False
    assert caught.value.handle.outcome(30.0) in {"none", "partial"}
    hasty.flush(timeout_s=30.0)
    assert counter.value == 0


@pytest.mark.parametrize("restarted", [0, 1])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_node_that_is_restarted_goes_on(team, layout, restarted):
    region, counter = made(team.box(), team, layout)
    region.put(X, signal=counter)
    team.nodes[restarted].is_down = True
    handle = region.put_nb(X + 1, signal=counter)
    assert not handle.done()
    team.nodes[restarted].restart()
    team.nodes[restarted].is_down = False
    handle.wait()
    assert counter.value == 2
    assert region.get().tolist() == (X + 1).tolist()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_flush_sends_what_nobody_waits_for(hasty, team, layout):
    region, counter = made(hasty, team, layout)
    team.nodes[0].is_down = True
    for k in range(3):
        region.put_nb(X + k, signal=counter)
    with pytest.raises(RequestTimeoutError):
        hasty.flush()
    assert counter.value == 0
    team.nodes[0].is_down = False
    hasty.flush(timeout_s=30.0)
    assert counter.value == 3
    assert region.get().tolist() == (X + 2).tolist()


def test_a_flush_tells_of_a_signal_that_failed(team):
    box = team.box()
    region, counter = made(box, team)
    box.free(counter)
    region.put_nb(X, signal=counter)
    with pytest.raises(RegionFreedError):
        box.flush()
    box.flush()


def test_a_counter_of_a_memory_that_is_gone_stops_the_put_before_it_begins(team):
    region, counter = made(team.box(), team)
    node = team.nodes[1]
    node.restart(unlink=True)
    with pytest.raises(PeerLostError):
        counter.add()
    with pytest.raises(PeerLostError):
        region.put(X, signal=counter)


def test_a_handle_interrupted_at_any_line_goes_on_exactly_once(team, interrupted):
    region, counter = made(team.box(), team)
    for total in itertools.count(1):
        handle = region.put_nb(X + total, signal=counter)
        _, was_struck = interrupted(total, handle.wait)
        handle.wait()
        assert counter.value == total
        if not was_struck:
            break
    assert total > 60
    assert region.get().tolist() == (X + total).tolist()


def test_the_counter_may_be_of_a_box_on_another_node_alone(team):
    region = team.alone(0).create("w", init=np.zeros(12, np.float32))
    counter = team.alone(5).counter("c")
    region.put(X, signal=counter)
    region.put_nb(X, signal=counter).wait()
    assert counter.value == 2

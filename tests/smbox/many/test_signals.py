"""A put on one node with a signal on another: the signal arrives once, after the data."""

from __future__ import annotations

import itertools
import threading

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
    with pytest.raises(RequestTimeoutError) as caught:
        region.put_nb(X, signal=counter)
    team.nodes[0].is_down = False
    assert caught.value.handle.outcome(30.0) in {"none", "partial"}
    hasty.flush(timeout_s=30.0)
    assert counter.value == 0
    region.put_nb(X, signal=counter).wait()
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
    node = team.nodes[restarted]

    def restart():
        node.restart()
        node.is_down = False

    node.is_down = True
    timer = threading.Timer(0.2, restart)
    timer.start()
    region.put_nb(X + 1, signal=counter).wait()
    timer.join()
    assert counter.value == 2
    assert region.get().tolist() == (X + 1).tolist()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_signal_is_sent_before_put_nb_returns(team, layout):
    """A worker that waits for others must not hold back its own signals."""
    region, counter = made(team.box(), team, layout)
    handle = region.put_nb(X, signal=counter)
    assert team.box().counter(counter.name).wait(1) == 1
    assert handle.done()


def test_a_put_nb_that_fails_raises_and_a_flush_has_nothing_to_tell(team):
    box = team.box()
    region, counter = made(box, team)
    box.free(counter)
    with pytest.raises(RegionFreedError):
        region.put_nb(X, signal=counter)
    box.flush()
    assert region.get().tolist() == X.tolist()


def test_a_counter_of_a_memory_that_is_gone_stops_the_put_before_it_begins(team):
    region, counter = made(team.box(), team)
    node = team.nodes[1]
    node.restart(unlink=True)
    with pytest.raises(PeerLostError):
        counter.add()
    with pytest.raises(PeerLostError):
        region.put(X, signal=counter)


@pytest.mark.parametrize("verb", ["put", "put_nb"])
def test_a_put_interrupted_at_any_line_counts_at_most_once(team, interrupted, verb):
    region, counter = made(team.box(), team)
    for nth in itertools.count(1, 3):
        before = counter.value
        put = getattr(region, verb)
        _, was_struck = interrupted(nth, lambda put=put, x=X + nth: put(x, signal=counter))
        counted = counter.value - before
        assert counted in {0, 1}
        if counted:
            assert region.get().tolist() == (X + nth).tolist()
        if not was_struck:
            break
    assert nth > 60


def test_the_counter_may_be_of_a_box_on_another_node_alone(team):
    region = team.alone(0).create("w", init=np.zeros(12, np.float32))
    counter = team.alone(5).counter("c")
    region.put(X, signal=counter)
    region.put_nb(X, signal=counter).wait()
    assert counter.value == 2

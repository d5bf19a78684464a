"""Calls in a signal handler inside a call on one node: refused before any node does a part."""

from __future__ import annotations

import signal

import numpy as np
import pytest

from smbox.errors import ConfigError

X = np.ones(12, np.float32)


def batched(box, region):
    with box.batch() as batch:
        batch.accumulate(region, X)


CALLS = {
    "blocking": lambda _, region: region.accumulate(X),
    "nb": lambda _, region: region.accumulate_nb(X),
    "rows": lambda _, region: region.rows(range(12)).accumulate(X),
    "batch": batched,
}


@pytest.fixture
def inside():
    """Call a function in a signal handler inside another one, when it sends to a node."""

    def run(node, nested, job):
        deliver, errors = node.hub.deliver, []

        def handler(*_):
            with pytest.raises(ConfigError, match="set a flag and return") as caught:
                nested()
            errors.append(caught.value)

        def strike(connection, frames):
            if frames and not errors:
                signal.raise_signal(signal.SIGUSR1)
            deliver(connection, frames)

        before = signal.signal(signal.SIGUSR1, handler)
        node.hub.deliver = strike
        try:
            job()
        finally:
            node.hub.deliver = deliver
            signal.signal(signal.SIGUSR1, before)
        return errors

    return run


@pytest.mark.parametrize("outer", ["single", "striped"])
@pytest.mark.parametrize("call", sorted(CALLS))
def test_a_striped_verb_inside_a_call_on_one_node_changes_no_part(
    box, team, inside, call, outer
):
    """The other nodes had done their parts, and the error said that nothing had happened."""
    striped = box.create("w", init=0 * X, layout="striped")
    single = box.create(team.name_on(5), init=0 * X)
    job = {"single": single, "striped": striped}[outer].accumulate
    (error,) = inside(team.nodes[5], lambda: CALLS[call](box, striped), lambda: job(X))
    assert error.facts["node"] == 5
    assert striped.get().tolist() == [float(outer == "striped")] * 12
    striped.accumulate(X)
    assert striped.get().tolist() == [1.0 + (outer == "striped")] * 12


@pytest.mark.parametrize("home", [0, 5])
def test_a_free_inside_a_request_to_a_directory_frees_nothing(box, team, inside, home):
    """The head and the other parts were freed, and the part on the node of the call stayed."""
    region = box.create(team.name_on(home, "r"), init=X, layout="striped")
    name = team.name_on(5)
    (error,) = inside(team.nodes[5], lambda: box.free(region), lambda: box.create(name, 12))
    assert error.facts["node"] == 5
    assert box.attach(region.name).get().tolist() == X.tolist()
    box.free(region)
    assert [info.name for info in box.regions()] == [name]


def test_a_put_whose_signal_is_refused_is_not_done(box, team, inside):
    counter, region = box.counter(team.name_on(5)), box.create(team.name_on(0), init=X)
    inside(team.nodes[5], lambda: region.put(0 * X, signal=counter), lambda: counter.add(2))
    assert region.get().tolist() == X.tolist()
    region.put(0 * X, signal=counter)
    assert counter.value == 3


def test_a_wait_inside_a_call_on_one_node_tells_nothing_of_the_request(box, team, inside):
    region = box.create("w", init=0 * X, layout="striped")
    single = box.create(team.name_on(5), init=X)
    team.nodes[5].is_down = True
    handle = region.put_nb(X)
    team.nodes[5].is_down = False
    (error,) = inside(team.nodes[5], handle.wait, single.get)
    assert "outcome" not in error.facts
    handle.wait()
    assert region.get().tolist() == X.tolist()

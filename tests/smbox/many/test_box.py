"""Where a box over several nodes places regions; verbs are in test_region.py."""

from __future__ import annotations

import numpy as np
import pytest

import smbox
from smbox.address import GlobalAddress
from smbox.batch import Batch
from smbox.errors import (
    AddressRangeError,
    ConfigError,
    LayoutMismatchError,
    LimitError,
    RegionExistsError,
    RegionNotFoundError,
)
from smbox.paths.pair import PathPair

X = np.arange(12, dtype=np.float32)


def public(kind):
    return {name for name in vars(kind) if not name.startswith("_")}


def test_a_region_lies_on_the_node_of_its_name(box, team):
    for node_id in team.nodes:
        name = team.name_on(node_id)
        region = box.create(name, init=X)
        assert region.address.node == node_id
        assert team.alone(node_id).attach(name).get().tolist() == X.tolist()
        assert box.attach(name).get().tolist() == X.tolist()


def test_the_order_of_the_nodes_does_not_matter(box, team):
    box.create("w", init=X, layout="striped")
    box.create("v", init=X)
    box.counter("steps").add(3)
    other = team.box(order=(5, 0, 1))
    assert other.attach("w").get().tolist() == X.tolist()
    assert other.attach("v").get().tolist() == X.tolist()
    assert other.counter("steps").value == 3
    assert other.address == box.address == "inproc://node0,inproc://node1,inproc://node5"


def test_counters_barriers_and_locks_lie_on_the_node_of_their_name(box, team):
    name = team.name_on(5)
    counter = box.counter(name)
    box.barrier(name, parties=1)
    with box.lock(name, timeout_s=30.0):
        pass
    with smbox.join(box, name):
        pass
    assert counter.info.address.node == 5
    found = {info.name for info in box.regions()}
    assert {name, f"{name}.lock.members", f"{name}.members"} <= found
    assert {info.address.node for info in box.regions()} == {5}


def test_closing_leaves_locks_and_runs_on_every_node(team):
    box = team.box()
    names = [team.name_on(node_id) for node_id in team.nodes]
    members = [smbox.join(box, name, rank=0) for name in names]
    for name in names:
        box.lock(name).acquire(timeout_s=30.0)
    box.close()
    other = team.box()
    assert len(members) == 3
    for name in names:
        assert other.lock(name).holder() is None
        with other.lock(name, timeout_s=0.0), smbox.join(other, name) as member:
            assert member.rank == 0


def test_closing_lets_go_of_all_nodes_when_what_is_due_fails(team):
    box = team.box()
    region = box.create("w", init=X, layout="striped")

    def fail():
        raise RuntimeError("due")

    box.before_close(fail, fail)
    with pytest.raises(RuntimeError, match="due"):
        box.close()
    for first in (0, 4, 8):
        with pytest.raises(ConfigError, match="closed"):
            region[first : first + 4].get()


def test_closing_tells_all_nodes_before_it_waits_for_any_and_closes_all(team, monkeypatch):
    box, events = team.box(), []

    def noted(name, method, fails):
        def call(paths):
            events.append((name, paths.config.address))
            method(paths)
            if fails:
                raise RuntimeError("due")

        monkeypatch.setattr(PathPair, name, call)

    noted("close", PathPair.close, fails=True)
    noted("say_bye", PathPair.say_bye, fails=False)
    with pytest.raises(RuntimeError, match="due"):
        box.close()
    addresses = [f"inproc://node{node_id}" for node_id in team.nodes]
    assert sorted(events[:3]) == [("say_bye", address) for address in addresses]
    assert [address for name, address in events if name == "close"] == addresses[::-1]


def test_raw_addresses_go_to_their_node(box):
    region = box.create("w", init=X, layout="striped")
    for part in region.parts:
        box.put(part.address, np.full(2, 7, np.float32))
    assert region.get().tolist() == [7, 7, 2, 3, 7, 7, 6, 7, 7, 7, 10, 11]
    with pytest.raises(AddressRangeError, match=r"no node.*nodes=\[0, 1, 5\]"):
        box.get(GlobalAddress.at(3, 4096), 4)
    with pytest.raises(AddressRangeError, match="no node"):
        box.put(GlobalAddress.at(3, 4096), X)


def test_the_head_is_found_by_every_box_and_refused_by_a_box_of_one_node(box, team):
    name = team.name_on(1)
    region = box.create(name, init=X, layout="striped")
    alone = team.alone(1)
    with pytest.raises(ConfigError, match="connect to all of them") as caught:
        alone.attach(name)
    assert caught.value.facts["nodes"] == [0, 1, 5]
    with pytest.raises(ConfigError, match="connect to all of them"):
        alone.free(name)
    assert team.box().attach(name).get().tolist() == X.tolist()
    assert region.get().tolist() == X.tolist()


def test_bytes_that_look_like_a_head_by_shape_are_a_region(team):
    alone = team.alone(0)
    x = np.arange(4096, dtype=np.uint64).astype(np.uint8)
    alone.create("bytes", init=x)
    assert alone.attach("bytes").get().tolist() == x.tolist()


def test_a_striped_region_needs_all_its_nodes(team, team_of):
    team.box().create("w", init=X, layout="striped")
    fewer = team.box(order=(0, 1))
    home = team.name_on(0)
    team.box().create(home, init=X, layout="striped")
    with pytest.raises(ConfigError, match="connect to all nodes") as caught:
        fewer.attach(home)
    assert caught.value.facts["node"] == 5
    with pytest.raises(ConfigError, match="connect to all nodes"):
        fewer.free(home)
    with pytest.raises(ConfigError, match="connect to all nodes"):
        fewer.optimizer(team.box().attach(home), "momentum", lr=0.5)
    assert [info.name for info in team.box().regions() if "momentum" in info.name] == []
    assert team.box().attach(home).get().tolist() == X.tolist()


def test_clients_of_other_nodes_have_other_counters(box, team):
    fewer = team.box(order=(0, 1))
    name = team.name_on(5)
    box.counter(name).add(3)
    assert fewer.counter(name).value == 0
    assert fewer.counter(team.name_on(0)).info == box.counter(team.name_on(0)).info


def test_one_layout_is_not_the_other(box):
    box.create("striped", init=X, layout="striped")
    box.create("single", init=X)
    with pytest.raises(LayoutMismatchError):
        box.create("striped", init=X, exist_ok=True)
    with pytest.raises(LayoutMismatchError):
        box.create("single", init=X, layout="striped", exist_ok=True)
    for layout in ("single", "striped"):
        with pytest.raises(RegionExistsError, match="attach it, or pass exist_ok"):
            box.create("striped", init=X, layout=layout)
    for creator in (box, box.home_of("striped")):  # the head has this very layout
        with pytest.raises(LayoutMismatchError, match="striped over several nodes"):
            creator.create("striped", shape=4096, dtype="uint8", exist_ok=True)
    with pytest.raises(ConfigError, match="layout must be one of"):
        box.create("other", shape=3, layout="diagonal")
    with pytest.raises(ConfigError, match="layout must be one of"):
        box.home_of("w").create("other", shape=3, layout="diagonal")


@pytest.mark.parametrize(
    "wanted",
    [{"shape": 7}, {"shape": 2, "init": X[:2]}, {"shape": 4096, "dtype": "uint8"}],
    ids=["zeros", "filled", "as the head"],
)
def test_a_striped_region_that_was_found_is_told_as_it_is(box, wanted):
    box.create("striped", shape=(6, 2), dtype="float64", consistency="none", layout="striped")
    for creator in (box, box.home_of("striped")):
        with pytest.raises(LayoutMismatchError, match="striped over several nodes") as caught:
            creator.create("striped", exist_ok=True, **wanted)
        facts = caught.value.facts
        told = [(facts[k], facts[f"wanted_{k}"]) for k in ("layout", "shape", "consistency")]
        assert told == [("striped", "single"), ([6, 2], [wanted["shape"]]), ("none", "stripe")]
        assert facts["dtype"] == "float64"


def test_striped_over_one_node_is_a_plain_region(team):
    alone = team.alone(0)
    region = alone.create("w", init=X, layout="striped")
    assert [info.name for info in alone.regions()] == ["w"]
    assert len(region.parts) == 1


@pytest.mark.parametrize("name", ["w#0123456789abcdef", "w#0123456789abcdef/momentum"])
def test_names_of_parts_are_not_for_others(box, team, name):
    for made in (box, team.alone(0)):
        with pytest.raises(ConfigError, match="parts of striped regions"):
            made.create(name, shape=3)


def test_the_name_of_a_striped_region_leaves_room_for_those_of_its_parts(box):
    region = box.create("n" * 183, init=X, layout="striped")
    assert box.attach(region.name).get().tolist() == X.tolist()
    with pytest.raises(LimitError, match="1 to 183 bytes") as caught:
        box.create("n" * 184, init=X, layout="striped")
    assert caught.value.facts["name_nbytes"] == 184


def test_freeing_takes_head_and_parts(box):
    for free in (lambda region: region, lambda region: region.name):
        region = box.create("w", init=X, layout="striped")
        assert len(box.regions()) == 4
        with pytest.raises(ConfigError, match="not a slice"):
            box.free(region[2:])
        box.free(free(region))
        assert box.regions() == []
    with pytest.raises(RegionNotFoundError):
        box.attach("w", timeout_s=0.0)
    region = box.create("w", init=X, layout="striped")
    head = next(info for info in box.regions() if info.name == "w")
    box.free(head)
    assert box.regions() == []


def test_a_batch_is_split_by_node(box, team):
    striped = box.create("w", init=X, layout="striped")
    single = box.create(team.name_on(5), init=X)
    moved = X.copy()
    with box.batch() as batch:
        batch.accumulate(striped, X)
        batch.put(single, np.zeros(12, np.float32))
        old = batch.fetch_and_op(striped[2:10], X[2:10])
        batch.elastic(single, moved, 0.5)
        assert len(batch) == 8
    assert old.tolist() == (2 * X[2:10]).tolist()
    assert striped[2:10].get().tolist() == (3 * X[2:10]).tolist()
    assert moved.tolist() == (X / 2).tolist()
    with pytest.raises(ConfigError, match="inside its with block"):
        batch.put(single, X)
    with pytest.raises(TypeError), box.batch() as batch:
        batch.put("w", X)


BATCHED = {
    "put": lambda batch, region: batch.put(region, X),
    "accumulate": lambda batch, region: batch.accumulate(region, X),
    "elastic": lambda batch, region: batch.elastic(region, -X, 1.0, np.empty_like(X)),
    "fetch_and_op": lambda batch, region: batch.fetch_and_op(region, X),
}


@pytest.mark.parametrize("verb", sorted(public(Batch)))
def test_every_verb_of_a_batch_goes_to_all_nodes(box, verb):
    region = box.create("w", shape=(12,), layout="striped")
    with box.batch() as batch:
        BATCHED[verb](batch, region)
    assert np.abs(region.get()).tolist() == X.tolist()
    assert len({part.node for part in region.parts}) == 3


def test_an_optimizer_keeps_its_state_beside_the_parts(box):
    region = box.create("w", init=X, layout="striped")
    optimizer = box.optimizer(region, "momentum", lr=0.5, momentum=0.5)
    optimizer.step(X)
    (state,) = optimizer.states.values()
    assert [part.node for part in state.parts] == [part.node for part in region.parts]
    info, first = state.info, state.info.parts[0]
    assert (info.name, info.address) == (first.name, first.address)
    assert (state.get().tolist(), region.get().tolist()) == (X.tolist(), (X / 2).tolist())
    with pytest.raises(ConfigError):
        box.optimizer(region[:4], "momentum", lr=0.5)
    optimizer.free()
    box.free(region)
    assert box.regions() == []


def test_figures_and_facts_are_by_node(box):
    assert set(box.stats()) == {"node 0", "node 1", "node 5"}
    assert [info.node_id for info in box.nodes] == [0, 1, 5]
    assert [info.node_id for info in box.home_of("w").nodes] == [box.home_of("w").node.node_id]
    with pytest.raises(ConfigError, match="several nodes"):
        _ = box.node
    assert box.transport == "inproc"
    assert "node 5: " in box.transport_reason

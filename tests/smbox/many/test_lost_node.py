"""Striped regions when a node is lost, restarted, or restarted with a new memory."""

from __future__ import annotations

import numpy as np
import pytest

from smbox.errors import PeerLostError, RegionFreedError, RequestTimeoutError

X = np.arange(12, dtype=np.float32)
SHORT_S = 0.3


@pytest.fixture
def hasty(team):
    return team.box(timeout_s=SHORT_S)


@pytest.fixture
def region(hasty):
    return hasty.create("w", init=X, layout="striped")


def test_a_lost_node_is_named_and_the_others_go_on(hasty, region, team):
    team.nodes[1].is_down = True
    with pytest.raises(RequestTimeoutError) as caught:
        region.accumulate(X)
    facts = caught.value.facts
    assert (facts["node"], facts["node_address"]) == (1, "inproc://node1")
    assert facts["parts"] == {0: "all", 1: "unknown", 5: "all"}
    assert facts["outcome"] == "unknown"
    assert facts["ranges_done"] == [(0, 16), (32, 48)]
    assert region[:4].get().tolist() == (2 * X[:4]).tolist()
    assert region[8:].get().tolist() == (2 * X[8:]).tolist()
    with pytest.raises(RequestTimeoutError) as caught:
        region.get()
    assert caught.value.facts["node"] == 1


def test_a_timeout_tells_what_failed_at_other_nodes(hasty, region, team):
    team.alone(0).free(next(i for i in team.alone(0).regions() if i.name.startswith("w#")))
    team.nodes[1].is_down = True
    with pytest.raises(RequestTimeoutError) as caught:
        region.accumulate(X)
    facts = caught.value.facts
    assert list(facts["failed"]) == [0]
    assert "freed" in facts["failed"][0]
    assert facts["parts"] == {0: "none", 1: "unknown", 5: "all"}


def test_flush_tells_of_a_change_that_failed_at_two_nodes_once(hasty, region, team):
    for node in (0, 1):
        home = team.alone(node)
        home.free(next(info for info in home.regions() if info.name.startswith("w#")))
    for call in (lambda: region.accumulate(X), lambda: region.accumulate_nb(X).wait()):
        with pytest.raises(RegionFreedError):
            call()
        hasty.flush()
    handle = region.accumulate_nb(X)
    while not handle.done():
        pass
    with pytest.raises(RegionFreedError) as first:
        hasty.flush()
    assert first.value.facts["node"] == 0
    (note,) = first.value.__notes__
    assert "node=1" in note
    team.nodes[5].is_down = True
    with pytest.raises(RequestTimeoutError) as caught:
        region.accumulate(X)
    assert list(caught.value.facts["failed"]) == [0, 1]
    team.nodes[5].is_down = False
    hasty.flush(timeout_s=30.0)


def test_the_outcome_is_settled_when_the_node_is_back(region, team):
    team.nodes[1].is_down = True
    with pytest.raises(RequestTimeoutError) as caught:
        region.accumulate(X)
    team.nodes[1].is_down = False
    handle = caught.value.handle
    found = handle.outcome(30.0)
    assert found in {"all", "partial"}
    done = region[4:8].get().tolist() == (2 * X[4:8]).tolist()
    assert done == (found == "all")


@pytest.mark.parametrize("lost", [(1,), (0, 1, 5)])
def test_an_nb_verb_goes_on_when_the_node_is_back(region, team, lost):
    for node_id in lost:
        team.nodes[node_id].is_down = True
    handle = region.accumulate_nb(X)
    with pytest.raises(RequestTimeoutError):
        handle.wait(timeout_s=SHORT_S)
    assert not handle.done()
    for node_id in lost:
        team.nodes[node_id].is_down = False
    handle.wait(timeout_s=30.0)
    assert handle.outcome() == "all"
    assert region.get().tolist() == (2 * X).tolist()


def test_a_node_that_is_restarted_goes_on(team):
    region = team.box().create("w", init=X, layout="striped")
    team.nodes[1].restart()
    region.accumulate(X)
    assert region.get().tolist() == (2 * X).tolist()


def test_a_node_that_comes_back_empty_has_lost_its_part_for_good(team):
    box = team.box()
    names = {node_id: team.name_on(node_id, "striped") for node_id in team.nodes}
    regions = {
        node_id: box.create(name, init=X, layout="striped") for node_id, name in names.items()
    }
    single = box.create(team.name_on(1, "single"), init=X)
    team.nodes[1].restart(unlink=True)
    with pytest.raises(PeerLostError) as caught:
        regions[0].put(np.zeros(12, np.float32))
    facts = caught.value.facts
    assert (facts["node"], facts["outcome"]) == (1, "unknown")
    assert facts["parts"] == {0: "all", 1: "unknown", 5: "all"}
    with pytest.raises(PeerLostError) as caught:
        regions[0][4:8].put(np.zeros(4, np.float32))
    assert (caught.value.facts["outcome"], caught.value.facts["parts"]) == ("none", {1: "none"})
    assert regions[0][:4].get().tolist() == [0, 0, 0, 0]
    fresh = team.box()
    for lost in (regions[0], single):
        with fresh.batch() as batch, pytest.raises(PeerLostError) as caught:
            batch.put(lost, X)  # told before the batch ends
        assert caught.value.facts["node"] == 1
    for each in (box, fresh):
        with pytest.raises(PeerLostError) as caught:
            each.free(regions[1])
        assert caught.value.facts["node"] == 1
    assert [info for info in fresh.regions() if info.name.startswith(f"{names[1]}#")] == []
    for node_id in (0, 5):
        with pytest.raises(PeerLostError) as caught:
            fresh.attach(names[node_id])
        assert (caught.value.facts["node"], caught.value.facts["outcome"]) == (1, "none")
        fresh.free(names[node_id])
        again = fresh.create(names[node_id], init=X, layout="striped")
        assert again.get().tolist() == X.tolist()
    assert fresh.create(names[1], init=X, layout="striped").get().tolist() == X.tolist()


def test_a_box_of_the_memory_before_is_told_to_connect_again(team):
    box, name = team.box(), team.name_on(0)
    assert box.regions() == []  # it is connected
    team.nodes[1].restart(unlink=True)
    region = team.box().create(name, init=X, layout="striped")
    with pytest.raises(PeerLostError, match="; connect again") as caught:
        box.attach(name)
    assert caught.value.facts["node"] == 1
    assert region.get().tolist() == X.tolist()


def test_an_interrupted_verb_is_over_and_leaves_whole_parts(team, interrupted):
    region = team.box().create("w", init=np.zeros(12, np.float32), layout="striped")
    was_cut = []
    for nth in range(1, 1200, 61):
        value = np.full(12, nth, np.float32)
        _, cut = interrupted(nth, lambda value=value: region.put(value))
        was_cut.append(cut)
        for part in region.parts:
            found = region[part.first_row : part.limit_row].get()
            assert len(set(found.tolist())) == 1
        region.put(value)
        assert region.get().tolist() == value.tolist()
    assert was_cut.count(True) > 5


def test_snapshots_name_the_node_too(region, team):
    assert region[4:8].get_nb(snapshot=True).result().tolist() == X[4:8].tolist()
    team.nodes[1].restart(unlink=True)
    reads = (
        lambda: region[4:8].get(snapshot=True),
        lambda: region[4:8].get_nb(snapshot=True).result(),
    )
    for read in reads:
        with pytest.raises(PeerLostError) as caught:
            read()
        assert caught.value.facts["node"] == 1


def test_a_batch_names_the_node_that_is_lost(hasty, region, team):
    team.nodes[0].is_down = True
    with pytest.raises(RequestTimeoutError) as caught, hasty.batch() as batch:
        batch.put(region, np.zeros(12, np.float32))
    assert caught.value.facts["node"] == 0
    assert caught.value.facts["parts"] == {0: "unknown", 1: "all", 5: "all"}
    assert caught.value.handle.ranges_done() == []  # its changes may be of several regions
    assert region[4:].get().tolist() == [0] * 8


def test_a_timeout_tells_what_failed_elsewhere(hasty, region, team):
    freed = region.parts[0].address
    hasty.free(next(info for info in hasty.regions() if info.address == freed))
    team.nodes[5].is_down = True
    with pytest.raises(RequestTimeoutError) as caught:
        region.put(X)
    assert "freed" in caught.value.facts["failed"][0]
    assert caught.value.facts["parts"][1] == "all"


@pytest.mark.parametrize("verb", ["accumulate", "fetch_and_op"])
def test_a_refusal_at_one_node_tells_what_happened_at_the_others(hasty, region, verb):
    freed = region.parts[1].address
    hasty.free(next(info for info in hasty.regions() if info.address == freed))
    with pytest.raises(RegionFreedError) as caught:
        getattr(region, verb)(X)
    facts = caught.value.facts
    assert (facts["node"], facts["outcome"]) == (1, "partial")
    assert facts["parts"] == {0: "all", 1: "none", 5: "all"}
    assert facts["ranges_done"] == [(0, 16), (32, 48)]
    assert region[:4].get().tolist() == (2 * X[:4]).tolist()
    with pytest.raises(RegionFreedError) as caught:
        getattr(region[4:8], verb)(X[4:8])
    assert "outcome" not in caught.value.facts  # nothing was changed anywhere


def test_a_wait_names_the_node_that_is_lost_and_changed_nothing(region, team):
    team.nodes[1].is_down = True
    with pytest.raises(RequestTimeoutError) as caught:
        region.wait(1000, timeout_s=SHORT_S)
    assert (caught.value.facts["node"], caught.value.facts["timeout_s"]) == (1, SHORT_S)
    assert caught.value.handle.outcome() == "none"


@pytest.mark.parametrize("call", ["flush", "version"])
def test_each_node_gets_the_time_that_is_left(team, call):
    box = team.box(timeout_s=1.0)
    region = box.create("w", init=X, layout="striped")
    team.nodes[5].is_down = True
    region[8:].put_nb(X[8:])
    with pytest.raises(RequestTimeoutError) as caught:
        _ = box.flush() if call == "flush" else region.version
    assert caught.value.facts["node"] == 5
    assert caught.value.facts["timeout_s"] < 1.0


def test_a_request_of_no_elements_finds_that_any_part_was_freed(hasty, region):
    freed = region.parts[2].address
    hasty.free(next(info for info in hasty.regions() if info.address == freed))
    for verb in (region[:0].get, region[4:4].get_nb().result, lambda: region[:0].put(X[:0])):
        with pytest.raises(RegionFreedError) as caught:
            verb()
        assert caught.value.facts["node"] == 5


def test_flush_and_the_directory_name_the_node_that_is_lost(hasty, region, team):
    team.nodes[5].is_down = True
    region[8:].put_nb(X[8:])
    for call in (hasty.flush, hasty.regions, hasty.stats, lambda: region.version):
        with pytest.raises(RequestTimeoutError) as caught:
            call()
        assert caught.value.facts["node"] == 5
    team.nodes[5].is_down = False
    hasty.flush(timeout_s=30.0)


def test_calls_by_name_or_address_name_the_node_that_is_lost(hasty, region, team):
    name = team.name_on(5)
    single = hasty.create(name, init=X)
    address = single.address
    striped = team.name_on(5, "s")
    hasty.create(striped, init=X, layout="striped")
    head = next(info for info in hasty.regions() if info.name == striped)
    team.nodes[5].is_down = True
    for call in (
        lambda: hasty.counter(name),
        lambda: hasty.barrier(name, 1),
        lambda: hasty.create(name, init=X),
        lambda: hasty.attach(name, timeout_s=None),
        lambda: hasty.free(name),
        lambda: hasty.free(head),
        lambda: hasty.get(address, 4),
        lambda: hasty.put(address, X),
        lambda: hasty.optimizer(region, "momentum", lr=0.1),
        lambda: hasty.optimizer(single, "momentum", lr=0.1),
    ):
        with pytest.raises(RequestTimeoutError) as caught:
            call()
        assert caught.value.facts["node"] == 5


def test_a_change_of_rows_tells_the_ranges_of_the_whole_region(region, team):
    team.nodes[1].is_down = True
    with pytest.raises(RequestTimeoutError) as caught:
        region.rows([0, 2, 5, 9]).put(np.zeros(4, np.float32))
    assert caught.value.facts["ranges_done"] == [(0, 12), (36, 40)]  # row 1 is between two
    assert region[:4].get().tolist() == [0, 1, 0, 3]

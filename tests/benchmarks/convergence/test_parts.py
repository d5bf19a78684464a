from __future__ import annotations

from dataclasses import replace

import pytest
from catalog import ROWS
from parts import parts

ROW = replace(ROWS["easgd"], workers=4, batch=10)
SAMPLES = 4000


def steps(scenario: str, *, pace: str = "worker", fate: str = "worker", nodes: int = 1):
    row = replace(ROW, scenario=scenario, nodes=nodes)
    return parts(row, SAMPLES, pace=pace, fate=fate)


def test_undisturbed_workers_do_equally_many_steps():
    assert [part.steps for part in steps("none")] == [100] * 4


def test_a_slow_worker_does_fewer_steps():
    found = steps("slow")
    assert [part.steps for part in found] == [123, 123, 123, 31]
    assert [part.slowness for part in found] == [1, 1, 1, 4]


def test_those_who_wait_for_a_slow_worker_are_as_slow():
    assert [part.steps for part in steps("slow", pace="all")] == [100] * 4
    node = steps("slow", pace="node", nodes=2)
    assert [part.steps for part in node] == [160, 160, 40, 40]
    assert [part.slowness for part in node] == [1, 1, 1, 4]


def test_survivors_do_the_steps_of_a_killed_worker():
    found = steps("killed")
    assert [part.steps for part in found] == [117, 117, 117, 50]
    assert [part.is_killed for part in found] == [False, False, False, True]
    assert [part.ends for part in found] == [True, True, True, False]


def test_a_node_dies_with_its_worker():
    found = steps("killed", fate="node", nodes=2)
    assert [part.steps for part in found] == [150, 150, 100, 50]
    assert [part.ends for part in found] == [True, True, False, False]
    assert found[2].done(21) == found[3].done(21) == 0.2  # one learning rate in a group


def test_nobody_survives_where_all_depend_on_each_other():
    found = steps("killed", fate="all")
    assert [part.steps for part in found] == [100, 100, 100, 50]
    assert not any(part.ends for part in found)


def test_a_joining_worker_begins_half_through():
    found = steps("joining")
    assert [part.steps for part in found] == [117, 117, 117, 50]
    assert found[3].done(1) == 0.5
    assert found[3].done(51) == 1.0
    assert found[0].done(1) == 0.0
    with pytest.raises(ValueError, match="start together"):
        steps("joining", fate="all")


@pytest.mark.parametrize("scenario", ["none", "slow", "killed", "joining"])
@pytest.mark.parametrize(("scope", "nodes"), [("worker", 1), ("node", 2)])
def test_every_scenario_has_equally_many_samples(scenario: str, scope: str, nodes: int):
    found = steps(scenario, pace=scope, fate=scope, nodes=nodes)
    done = sum(part.steps for part in found)
    lost = sum(part.steps - 50 for part in found if not part.ends and not part.is_killed)
    assert (done - lost) * 10 == pytest.approx(SAMPLES, rel=0.01)

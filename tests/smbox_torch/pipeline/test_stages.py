"""Stages that died before another one looked at them."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import NamedTuple

import pytest

from smbox.errors import ConfigError, RequestTimeoutError, WorkerLostError
from smbox.member_record import Record
from smbox_torch.pipeline.building import leave
from smbox_torch.pipeline.stage_exit import StageExit
from smbox_torch.pipeline.stages import Stages
from smbox_torch.workers.joining import team_of

pytestmark = pytest.mark.shares

LONG_S = 60.0
LEASE_S = 60.0

JOIN = """
import os, sys, time
import smbox
from smbox_torch.workers.joining import team_of
address, name, lease_s = sys.argv[1:]
with smbox.connect(address, timeout_s=60.0) as box:
    team_of(box, name, 3, rank=2, lease_s=float(lease_s))
    print(os.getpid(), flush=True)
    time.sleep(600)
"""


class Came(NamedTuple):
    """A process that has come as stage 2."""

    pid: int
    kill: Callable[[], None]


@pytest.fixture
def come(preloaded, node, name) -> Callable[..., Came]:
    """``come(lease_s)``: stage 2 comes, as a process."""

    def start(lease_s: float = LEASE_S) -> Came:
        command = [preloaded, "-c", JOIN, node.address, name, str(lease_s)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

        def kill() -> None:
            process.kill()
            process.communicate()

        if not (pid := process.stdout.readline()):
            kill()
            raise AssertionError
        return Came(int(pid), kill)

    return start


@contextmanager
def stage_1(
    node, name, timeout_s: float = LONG_S, joined: Callable[[], None] = lambda: None
) -> Iterator[Stages]:
    team = team_of(node, name, 3, rank=1, lease_s=LEASE_S)
    try:
        joined()
        yield Stages(node, team, 3, timeout_s)
    finally:
        team.leave()


def test_a_stage_that_came_first_and_died_before_another_waits_is_lost(node, name, come):
    came = come()
    with stage_1(node, name) as stages:
        came.kill()
        with pytest.raises(WorkerLostError) as caught:
            stages.wait_for_region(f"{name}.never", 2)
    assert (caught.value.facts["stage"], caught.value.facts["how"]) == (2, "died")


def test_a_lost_stage_is_named_by_its_own_process_not_by_its_successor(node, name, come):
    with stage_1(node, name) as stages:
        lost = come()
        assert stages.is_alive(2)
        stages.expect(2, stages.generation(2))
        lost.kill()
        again = come()
        with pytest.raises(WorkerLostError) as caught:
            stages.wait_for_region(f"{name}.never", 2)
        again.kill()
    assert (caught.value.facts["stage"], caught.value.facts["how"]) == (2, "died")
    assert caught.value.facts["pid"] == lost.pid


def test_a_stage_that_came_later_and_died_before_another_waits_is_lost(node, name, come):
    with stage_1(node, name) as stages:
        come().kill()
        with pytest.raises(WorkerLostError) as caught:
            stages.wait_for_region(f"{name}.never", 2)
    assert (caught.value.facts["stage"], caught.value.facts["how"]) == (2, "died")


def test_a_stage_that_died_between_the_two_first_reads_of_another_is_lost(node, name, come):
    with (
        stage_1(node, name, joined=lambda: come().kill()) as stages,
        pytest.raises(WorkerLostError) as caught,
    ):
        stages.wait_for_region(f"{name}.never", 2)
    assert (caught.value.facts["stage"], caught.value.facts["how"]) == (2, "died")


def test_a_place_that_a_killed_run_has_left_is_no_lost_stage(node, name, come):
    """Not even when the mark that its lease is over changes its word."""
    come(lease_s=0.5).kill()
    with (
        stage_1(node, name, timeout_s=2.0) as stages,
        pytest.raises(RequestTimeoutError, match="stage 2 did not respond"),
    ):
        stages.wait_for_region(f"{name}.never", 2)


def test_a_node_that_is_silent_for_a_poll_ends_no_wait(node, name, monkeypatch):
    made, attach = node.create(f"{name}.late", shape=(1,), dtype="float32"), node.attach
    silence = [RequestTimeoutError("no reply to attach in time")]

    def attach_late(*args, **options):
        if silence:
            raise silence.pop()
        return attach(*args, **options)

    with stage_1(node, name) as stages:
        monkeypatch.setattr(node, "attach", attach_late)
        assert not stages.exists(made.name)
        assert stages.exists(made.name)
        silence.append(RequestTimeoutError("no reply to attach in time"))
        assert stages.wait_for_region(made.name, 2).address == made.address


def test_a_stage_that_left_just_before_its_end_has_left_and_not_died(node, name, monkeypatch):
    """Another one that was lost made it leave; that one is the stage to name."""
    other = team_of(node, name, 3, rank=2, lease_s=LEASE_S)

    def leave_and_end(_: Record) -> bool:
        other.leave()
        return True

    with stage_1(node, name, timeout_s=0.5) as stages:
        assert stages.is_alive(2)
        with monkeypatch.context() as patch:
            patch.setattr(Record, "is_known_dead", leave_and_end)
            with pytest.raises(RequestTimeoutError):
                stages.wait_for_region(f"{name}.never", 0)


def test_what_a_stage_did_just_before_the_deadline_is_found(node, name):
    answers = [RequestTimeoutError("not yet"), 5]

    def wait(*_, **__) -> int:
        found = answers.pop(0)
        if isinstance(found, Exception):
            raise found
        return found

    with stage_1(node, name, timeout_s=0.0) as stages:
        assert stages.wait_for_counter(SimpleNamespace(wait=wait), 5, 2) == 5


def test_a_stage_that_others_count_as_dead_is_asked_whether_it_was_stopped(node, name):
    with stage_1(node, name) as stages:
        error = stages.lost_error(0, StageExit(1, "died"))
    assert "counted stage 1, this one, as dead" in str(error)


def test_a_worker_more_than_there_are_stages_is_refused(node, name):
    teams = [team_of(node, name, 1, lease_s=LEASE_S)]
    with pytest.warns(UserWarning, match="worker 2 of the run"):
        teams.append(team_of(node, name, 1, lease_s=LEASE_S))
    with pytest.raises(ConfigError, match="all stages are taken"):
        Stages(node, teams[1], 1, LONG_S)
    for team in teams:
        team.leave()


def test_the_last_stage_ignores_a_region_whose_name_has_a_number_of_no_stage(box, name):
    """It raised IndexError."""
    kept, freed = f"{name}.{10**30}.1.offer", f"{name}.0.1.offer"
    for each in (kept, freed):
        box.create(each, shape=(4,))
    leave(box, name, Stages(box, team_of(box, name, 1, rank=0), 1, 0.0))
    assert [each.name for each in box.regions() if each.name in {kept, freed}] == [kept]

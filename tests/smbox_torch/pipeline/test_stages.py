"""Stages that died before another one looked at them."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import pytest
import torch
from torch import nn

from smbox import Region
from smbox.errors import ConfigError, RequestTimeoutError, WorkerLostError
from smbox.member_record import Record
from smbox_torch.pipeline import agreement
from smbox_torch.pipeline.agreement import Answer, Boundary, Offer, Refusal, Settings
from smbox_torch.pipeline.building import StageBuilder
from smbox_torch.pipeline.ring import TensorSpec, free_ring
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


def test_a_refusal_that_replaces_an_offer_while_it_is_read_is_found(node, name, monkeypatch):
    first = team_of(node, name, 3, rank=0, lease_s=LEASE_S)
    boundary = Boundary(node, name, 0, first.member.seen.generation(0))
    boundary.offer(Offer(Settings(3, 4, "1f1b", 2), (4, 2), "float32"))
    refusal = Refusal("late", "stage 2 did not start", 0, "failed")
    read = agreement._read

    def replaced_and_read(region: Region) -> agreement._Message:
        monkeypatch.undo()
        boundary.refuse_downstream(refusal)
        return read(region)

    monkeypatch.setattr(agreement, "_read", replaced_and_read)
    with stage_1(node, name) as stages:
        assert Boundary.await_offer(node, name, 0, stages)[1] == refusal
    boundary.free()
    first.leave()


def test_a_refusal_that_came_before_a_stage_looked_is_read(node, name, left):
    """Stage 1 sees that stage 0 has come, and refuses at once: its arguments are invalid."""
    first = team_of(node, name, 2, rank=0, lease_s=LEASE_S)
    boundary = Boundary(node, name, 0, first.member.seen.generation(0))
    boundary.refuse_upstream(Refusal("unfit", "stage 1: slots=0", 1, "failed"))
    builder = StageBuilder(node, name, Stages(node, first, 2, 5.0), 2)
    with pytest.raises(ConfigError, match="stage 1: slots=0"):
        builder.build(Settings(2, 2, "1f1b", 2), nn.Linear(2, 2), torch.ones(4, 2))
    first.leave()
    assert left(node, name) == []


def test_two_neighbours_that_refuse_at_once_leave_no_message(node, name, left, monkeypatch):
    """Stage 1 answers while stage 0, too, finds that stage 2 was lost."""
    first, second = (team_of(node, name, 3, rank=rank, lease_s=LEASE_S) for rank in range(2))
    lost = WorkerLostError("stage 2 died", stage=2, how="died")

    def answered_and_lost(boundary: Boundary, _: Stages) -> None:
        boundary.refuse_upstream(Refusal("ended", "", 2, "died"))
        raise lost

    monkeypatch.setattr(Boundary, "await_answer", answered_and_lost)
    builder = StageBuilder(node, name, Stages(node, first, 3, LONG_S), 3)
    with pytest.raises(WorkerLostError):
        builder.build(Settings(3, 2, "1f1b", 2), nn.Linear(2, 2), torch.ones(4, 2))
    assert left(node, name) == []
    for team in (first, second):
        team.leave()


def test_a_stage_that_is_refused_just_before_it_answers_is_not_built(
    node, name, left, monkeypatch
):
    """Stage 0 is interrupted while it waits for the answer, which it then does not read."""
    first, second = (team_of(node, name, 2, rank=rank, lease_s=LEASE_S) for rank in range(2))
    boundary = Boundary(node, name, 0, first.member.seen.generation(0))
    settings, answer = Settings(2, 2, "1f1b", 2), Boundary.answer
    boundary.offer(Offer(settings, (2, 2), "float32"))
    node.create(boundary.backward, 2 * TensorSpec((2, 2), "float32").slot_nbytes, "uint8")

    def refused_and_answer(own: Boundary, sent: Answer) -> None:
        boundary.refuse_downstream(Refusal("ended", "KeyboardInterrupt: ", 0, "failed"))
        free_ring(node, boundary.backward)
        answer(own, sent)

    monkeypatch.setattr(Boundary, "answer", refused_and_answer)
    builder = StageBuilder(node, name, Stages(node, second, 2, LONG_S), 2)
    with pytest.raises(WorkerLostError, match="KeyboardInterrupt"):
        builder.build(settings, nn.Linear(2, 2), None)
    for team in (first, second):
        team.leave()
    assert left(node, name) == []


def test_a_neighbour_that_failed_while_a_stage_waits_for_another_has_not_left(
    node, name, left, monkeypatch
):
    """Stage 0 refuses; stage 1 has read its offer before, and waits for stage 2."""
    first, second = (team_of(node, name, 3, rank=rank, lease_s=LEASE_S) for rank in range(2))
    boundary = Boundary(node, name, 0, first.member.seen.generation(0))
    settings, await_answer = Settings(3, 2, "1f1b", 2), Boundary.await_answer
    boundary.offer(Offer(settings, (2, 2), "float32"))

    def refused_and_await(own: Boundary, stages: Stages) -> Refusal | None:
        boundary.refuse_downstream(Refusal("ended", "KeyboardInterrupt: ", 0, "failed"))
        first.leave()
        return await_answer(own, stages)

    monkeypatch.setattr(Boundary, "await_answer", refused_and_await)
    builder = StageBuilder(node, name, Stages(node, second, 3, LONG_S), 3)
    with pytest.raises(WorkerLostError, match="KeyboardInterrupt"):
        builder.build(settings, nn.Linear(2, 2), None)
    second.leave()
    assert left(node, name) == []


def test_a_built_neighbour_that_failed_before_it_was_linked_has_not_left(
    node, name, left, monkeypatch
):
    """Stage 1 frees its ring before stage 0 looks for it."""
    first, second = (team_of(node, name, 2, rank=rank, lease_s=LEASE_S) for rank in range(2))

    def answered_and_failed(boundary: Boundary, stages: Stages) -> None:
        stages.expect(1, second.member.seen.generation(1))
        node.counter(f"{boundary.backward}.sent").add(StageExit(1, "failed").mark)
        second.leave()

    monkeypatch.setattr(Boundary, "await_answer", answered_and_failed)
    builder = StageBuilder(node, name, Stages(node, first, 2, LONG_S), 2)
    with pytest.raises(WorkerLostError, match="stage 1 failed"):
        builder.build(Settings(2, 2, "1f1b", 2), nn.Linear(2, 2), torch.ones(4, 2))
    first.leave()
    assert left(node, name) == []

"""Messages of the agreement that stages leave at any moment: each is read once, or freed."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from smbox import Region
from smbox.errors import ConfigError, RequestTimeoutError, WorkerLostError
from smbox_torch.pipeline.agreement import Answer, Boundary, Offer, Refusal, Settings
from smbox_torch.pipeline.building import StageBuilder
from smbox_torch.pipeline.ring import TensorSpec, free_ring
from smbox_torch.pipeline.stage_exit import StageExit
from smbox_torch.pipeline.stages import Stages
from smbox_torch.workers.joining import team_of

pytestmark = pytest.mark.shares

LONG_S = 60.0
LEASE_S = 60.0


def test_a_refusal_that_replaces_an_offer_while_it_is_read_is_found(node, name, monkeypatch):
    first = team_of(node, name, 3, rank=0, lease_s=LEASE_S)
    boundary = Boundary(node, name, 0, first.member.seen.generation(0))
    boundary.offer(Offer(Settings(3, 4, "1f1b", 2), (4, 2), "float32"))
    refusal = Refusal("late", "stage 2 did not start", 0, "failed")
    wait_for_offer = Stages.wait_for_offer

    def found_and_replaced(stages: Stages, *told: Any) -> tuple[int, Region]:
        found = wait_for_offer(stages, *told)
        monkeypatch.undo()
        boundary.refuse_downstream(refusal)
        return found

    monkeypatch.setattr(Stages, "wait_for_offer", found_and_replaced)
    second = team_of(node, name, 3, rank=1, lease_s=LEASE_S)
    stages = Stages(node, second, 3, LONG_S)
    assert Boundary.await_offer(node, name, 0, stages)[1] == refusal
    boundary.free()
    for team in (first, second):
        team.leave()


def test_a_refusal_that_is_passed_on_contains_no_other_one():
    told = "stage 0 failed; its own error says why; start all stages again"
    lost = WorkerLostError(told, stage=0, how="failed")
    assert Refusal.of(lost, 1) == Refusal("ended", "", 0, "failed")
    other = WorkerLostError("of no stage")
    assert Refusal.of(other, 1) == Refusal("ended", f"WorkerLostError: {other}", 1, "failed")


def test_a_timeout_at_one_stage_is_one_at_the_others():
    refusal = Refusal.of(RequestTimeoutError("stage 2 did not respond"), 1)
    assert refusal == Refusal("late", "stage 1: stage 2 did not respond", 1, "failed")
    error = refusal.error(None)
    assert isinstance(error, RequestTimeoutError)
    assert error.message == refusal.text


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


@pytest.mark.parametrize("is_killed", [False, True])
@pytest.mark.parametrize("restart", [0, 1])
def test_a_message_is_read_only_in_the_start_that_it_belongs_to(node, name, restart, is_killed):
    """A stage that starts later finds it; one that the launcher starts again does not.

    A stage that was killed on another host seems to live until its lease ends.
    """
    env = {"RANK": "0", "WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": name}
    first = team_of(node, name, 2, rank=0, lease_s=LEASE_S, env=env)
    boundary = Boundary(node, name, 0, first.member.seen.generation(0))
    offer = Offer(Settings(2, 4, "1f1b", 2), (4, 2), "float32")
    refusal = Refusal("unfit", "no module", 0, "failed")
    if is_killed:
        boundary.offer(offer)
    else:
        boundary.refuse_downstream(refusal)
        first.leave()
    env["TORCHELASTIC_RESTART_COUNT"] = str(restart)
    second = team_of(node, name, 2, rank=1, lease_s=LEASE_S, env=env)
    stages = Stages(node, second, 2, 1.0)
    if restart:
        with pytest.raises(RequestTimeoutError, match="stage 0 did not respond"):
            Boundary.await_offer(node, name, 0, stages)
    else:
        found = Boundary.await_offer(node, name, 0, stages)[1]
        assert found == (offer if is_killed else refusal)
    boundary.free()
    for team in (first, second):
        team.leave()


def test_an_offer_that_an_earlier_process_of_the_stage_has_answered_is_not_read(node, name):
    """Stage 0 raises the answer soon: whoever answered again would share its rings."""
    first = team_of(node, name, 2, rank=0, lease_s=LEASE_S)
    boundary = Boundary(node, name, 0, first.member.seen.generation(0))
    boundary.offer(Offer(Settings(2, 4, "1f1b", 2), (4, 2), "float32"))
    boundary.refuse_upstream(Refusal("ended", "KeyboardInterrupt: ", 1, "failed"))
    second = team_of(node, name, 2, rank=1, lease_s=LEASE_S)
    with pytest.raises(RequestTimeoutError, match="stage 0 did not respond"):
        Boundary.await_offer(node, name, 0, Stages(node, second, 2, 0.05))
    boundary.free()
    for team in (first, second):
        team.leave()


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

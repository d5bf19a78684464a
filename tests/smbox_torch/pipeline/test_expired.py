"""Stages whose leases expired although their processes run, as on a busy host."""

from __future__ import annotations

import threading

import pytest
import torch
from torch import nn

import smbox
from smbox.errors import WorkerLostError
from smbox.lease import expire
from smbox_torch import Pipeline
from smbox_torch.pipeline.stages import Stages
from smbox_torch.workers.joining import team_of

pytestmark = pytest.mark.shares

LEASE_S = 400.0
WAIT_S = 60.0


@pytest.fixture
def count_as_dead(node, name):
    """``count_as_dead(stage)``: mark the lease of a stage as expired, as an observer does."""

    def mark(stage):
        place = node.attach(f"{name}.members", timeout_s=WAIT_S)[stage : stage + 1]
        assert expire(place, int(place.get()[0, 0]))

    return mark


class LosingStage(threading.Thread):
    """A stage of three that waits for the offer of the previous one until a stage is lost.

    Attributes:
        is_waiting: it has looked for the offer.
        lost: number of the stage that its error names.
        before_free: called with the name of a region before it is freed.
    """

    def __init__(self, node, name, stage):
        super().__init__(daemon=True)
        self.is_waiting = threading.Event()
        self.before_free = lambda _: None
        self.lost = None
        self._where = node.address, name, stage
        self.start()
        assert self.is_waiting.wait(WAIT_S)

    def run(self):
        address, name, stage = self._where
        layers = [nn.Linear(3, 3) for _ in range(3)]
        with smbox.connect(address, timeout_s=WAIT_S) as box:
            attach, free = box.attach, box.free
            box.attach = lambda *a, **options: (self.is_waiting.set(), attach(*a, **options))[1]
            box.free = lambda region: (self.before_free(region), free(region))[1]
            try:
                Pipeline(box, name, layers, stage=stage, lease_s=LEASE_S)
            except WorkerLostError as error:
                self.lost = error.facts["stage"]


def test_a_refusal_that_nobody_reads_is_freed_by_the_last_stage(
    node, name, left, count_as_dead
):
    """Stage 2 counts stage 1 as dead, and has looked for its refusal when stage 1 sends it."""
    team = team_of(node, name, 3, rank=0, lease_s=LEASE_S)
    first, second = LosingStage(node, name, 1), LosingStage(node, name, 2)
    is_leaving = threading.Event()

    def wait_for_first(region):
        if region == f"{name}.1.1.answer" and not is_leaving.is_set():  # it has freed the offer
            is_leaving.set()
            first.join(WAIT_S)

    second.before_free = wait_for_first
    count_as_dead(1)
    assert is_leaving.wait(WAIT_S)
    count_as_dead(0)
    second.join(WAIT_S)
    assert (first.lost, second.lost) == (0, 1)
    assert left(node, name) == []
    team.leave()


def test_the_message_of_the_last_stage_to_a_later_one_stays(node, name, left):
    """The place of stage 1 was seen alive: its process belonged to an earlier run."""
    earlier = team_of(node, name, 2, rank=1, lease_s=LEASE_S)

    def fail():
        earlier.leave()
        raise ValueError

    with pytest.raises(smbox.ConfigError, match="no module"):
        Pipeline(node, name, [fail, fail], example=torch.ones(4, 3), stage=0, lease_s=LEASE_S)
    with pytest.raises(smbox.ConfigError, match="stage 0: no module"):
        Pipeline(node, name, [nn.Identity] * 2, stage=1, lease_s=LEASE_S, timeout_s=WAIT_S)
    assert left(node, name) == []


def test_a_stage_that_ended_is_named_before_one_whose_process_runs(
    node, name, count_as_dead, monkeypatch
):
    ended = team_of(node, name, 3, rank=2, lease_s=LEASE_S)
    slow = team_of(node, name, 3, rank=0, lease_s=LEASE_S)
    team = team_of(node, name, 3, rank=1, lease_s=LEASE_S)
    stages = Stages(node, team, 3, WAIT_S)
    for stage in (0, 2):
        count_as_dead(stage)
    record = team.member.read().records[2]
    is_alive = type(record).is_known_alive
    monkeypatch.setattr(
        type(record), "is_known_alive", lambda each: each != record and is_alive(each)
    )
    with pytest.raises(WorkerLostError) as caught:
        stages.wait_for_region(f"{name}.never", 0)
    assert (caught.value.facts["stage"], caught.value.facts["how"]) == (2, "died")
    for each in (ended, slow, team):
        each.leave()

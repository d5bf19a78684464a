"""A stage that is killed, stopped or interrupted at any moment, also while it is built."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import uuid
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

pytestmark = pytest.mark.shares

STAGE = """
import json, os, sys, time, torch
from torch import nn
import torch.nn.functional as F
import smbox
from smbox.errors import SmboxError
from smbox_torch import Pipeline
torch.set_num_threads(1)
address, name, stage, victim, phase = sys.argv[1:]
stage = int(stage)
is_victim = str(stage) == victim

def tell(**facts):
    print(json.dumps(facts), flush=True)

def stop_at(here):
    if is_victim and phase == here:
        tell(phase=here, pid=os.getpid())
        while True:
            time.sleep(0.05)

class Backward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        stop_at("backward")
        return gradient

class Layer(nn.Linear):
    calls = 0

    def forward(self, x):
        self.calls += 1
        if self.calls > 6:  # one is the agreement's, four are the first batch's
            stop_at("forward")
        y = super().forward(x)
        return Backward.apply(y) if self.calls > 6 else y

def make():
    stop_at("build")
    torch.manual_seed(0)
    return Layer(3, 3)

x, y = torch.ones(8, 3), torch.zeros(8, dtype=torch.int64)
with smbox.connect(address, timeout_s=60.0) as box:
    try:
        with Pipeline(box, name, [make] * 3, example=x, loss=F.cross_entropy, stage=stage,
                      lease_s=LEASE_S) as pipe:
            pipe.forward_backward(x, y)
            if phase == "between" and not is_victim:
                pipe.forward_backward(x, y)
            stop_at("between")
            for _ in range(BATCHES):
                pipe.forward_backward(x, y)
                time.sleep(PAUSE_S)
            tell(batches=pipe.stats().batches)
    except SmboxError as error:
        tell(kind=type(error).__name__, message=error.message, **error.facts)
"""


@contextmanager
def stages(
    preloaded: str, box, name: str, victim: str = "", phase: str = "", **told: float
) -> Iterator[list[subprocess.Popen[str]]]:
    """Three stages, each a process; all are gone afterwards."""
    told = {"LEASE_S": 4.0, "PAUSE_S": 0.0, "BATCHES": 3} | told
    code = "\n".join([*(f"{key} = {value}" for key, value in told.items()), STAGE])
    command = [preloaded, "-c", code, box.address, name]
    found = [
        subprocess.Popen(
            [*command, str(stage), victim, phase],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        for stage in range(3)
    ]
    try:
        yield [*found]
    finally:
        for stage in found:
            stage.kill()
            stage.communicate()


def await_renewals(box, name: str) -> None:
    """Wait until each stage has renewed its lease after all have come."""
    places = box.attach(f"{name}.members")
    least = 2
    for _ in range(2):
        version = places.version
        while ((renewals := places.get()[:3, 0] % (1 << 40)) < least).any():
            version = places.wait(version + 1, timeout_s=60.0)
        least = renewals + 1


HOW = {signal.SIGKILL: "died", signal.SIGSTOP: "died", signal.SIGINT: "failed"}


KILL, STOP, INTERRUPT = HOW


@pytest.mark.parametrize(
    ("phase", "victim", "by"),
    [
        *(("build", victim, KILL) for victim in range(3)),
        *(("build", 1, by) for by in (STOP, INTERRUPT)),
        *(("forward", victim, by) for victim, by in [(1, KILL), (2, STOP), (0, INTERRUPT)]),
        *(("backward", victim, by) for victim, by in [(0, KILL), (1, STOP), (2, INTERRUPT)]),
        *(("between", victim, by) for victim, by in [(2, KILL), (0, STOP), (1, INTERRUPT)]),
    ],
    ids=lambda each: each.name if isinstance(each, signal.Signals) else str(each),
)
def test_all_others_name_a_stage_that_is_lost(left, preloaded, node, phase, victim, by):
    """The timeout is the default, 300 s: the test's own is shorter."""
    name = uuid.uuid4().hex
    with stages(preloaded, node, name, str(victim), phase) as found:
        lost = found.pop(victim)
        told = json.loads(lost.stdout.readline())
        assert told["phase"] == phase
        await_renewals(node, name)
        os.kill(told["pid"], by)
        try:
            each = [json.loads(stage.stdout.readline()) for stage in found]
        finally:
            if by == signal.SIGSTOP:
                os.kill(told["pid"], signal.SIGKILL)
        for told in each:
            assert told["kind"] == "WorkerLostError"
            assert (told["stage"], told["how"]) == (victim, HOW[by])
        for stage in found:
            assert stage.wait(timeout=60) == 0
        lost.communicate(timeout=60)  # after an interrupt it frees what it has made
    assert left(node, name) == []


def test_a_run_that_is_started_again_goes_on_for_longer_than_a_lease(left, preloaded, node):
    """Its stages take places whose holders had made progress, and keep them."""
    name = uuid.uuid4().hex
    with stages(preloaded, node, name, "1", "between") as found:
        assert found[1].stdout.readline()
    with stages(preloaded, node, name, LEASE_S=1.0, PAUSE_S=0.7) as found:
        assert [json.loads(each.stdout.readline()) for each in found] == [{"batches": 4}] * 3
        assert [each.wait(timeout=60) for each in found] == [0] * 3
    assert left(node, name) == []

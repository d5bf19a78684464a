"""Stages as processes: one is killed, stopped for good or has dropout."""

from __future__ import annotations

import os
import signal
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Self

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import smbox

pytestmark = pytest.mark.shares

LEASE_S = 2.0

STAGE = """
import os, sys, torch
from torch import nn
from torch.nn import functional as F
import smbox
from smbox.errors import WorkerLostError
from smbox_torch import Pipeline
print(os.getpid(), flush=True)
torch.set_num_threads(1)
address, transport, name, stage, lease_s = sys.argv[1:]
stage, x, y = int(stage), torch.ones(8, 5), torch.zeros(8, dtype=torch.int64)
def layers(seed, *each):
    torch.manual_seed(seed)
    return nn.Sequential(*(make() for make in each))
stages = [
    lambda: layers(0, lambda: nn.Linear(5, 6), nn.Dropout),
    lambda: layers(1, lambda: nn.Linear(6, 6), nn.Dropout),
    lambda: layers(2, lambda: nn.Linear(6, 3), nn.Dropout),
]
with smbox.connect(address, transport=transport, timeout_s=60.0) as box:
    with Pipeline(box, name, stages, example=x, loss=F.cross_entropy, stage=stage,
                  lease_s=float(lease_s)) as pipe:
        def step():  # by hand: to import torch's optimizers takes seconds
            loss = pipe.forward_backward(x, y)
            for parameter in pipe.module.parameters():
                parameter.data -= 0.1 * parameter.grad
                parameter.grad = None
            return loss
        torch.manual_seed(stage)
        losses = [step() for _ in range(3)]
        weights = torch.cat([p.detach().flatten() for p in pipe.module.parameters()])
        print(weights.numpy().tobytes().hex(), losses, flush=True)
        if sys.stdin.readline() == "end\\n":
            sys.exit()
        try:
            while True:
                step()
        except WorkerLostError as error:
            print(error.facts["stage"], error.facts["pid"], error.message, flush=True)
"""


class Run:
    """Three stages, each a process.

    A process that forks a stage is its parent, and waits for it: ``pids`` are those of stages.
    """

    def __init__(self, python: str, box, name: str, lease_s: float = LEASE_S) -> None:
        command = [python, "-c", STAGE, box.address, box.transport, name]
        self.stages = [
            subprocess.Popen(
                [*command, str(stage), str(lease_s)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for stage in range(3)
        ]
        self.pids = [int(line) for line in self.lines()]

    def lines(self) -> list[str]:
        return [stage.stdout.readline() for stage in self.stages]

    def tell(self, word: str) -> None:
        for stage in self.stages:
            stage.stdin.write(f"{word}\n")
            stage.stdin.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for stage in self.stages:
            stage.kill()
            stage.communicate()


@pytest.fixture
def box(node: smbox.Box) -> Iterator[smbox.Box]:
    """A box over tcp; test_killed.py loses stages on mapped memory."""
    with smbox.connect(node.address, transport="tcp", timeout_s=60.0) as box:
        yield box


@pytest.fixture
def start(preloaded: str, box) -> Callable[[str], Run]:
    """``start(name)``: a run on that box."""
    return lambda name: Run(preloaded, box, name)


@pytest.mark.parametrize("killed", [0, 1, 2])
def test_a_killed_stage_is_named_by_all_others(left, box, start, killed):
    name = uuid.uuid4().hex
    with start(name) as run:
        assert all(run.lines())
        run.tell("go")
        victim = run.stages.pop(killed)
        victim.kill()
        victim.communicate()
        began_s = time.monotonic()
        for told in run.lines():
            stage, pid, message = told.split(" ", 2)
            assert (int(stage), int(pid)) == (killed, run.pids[killed])
            assert message.startswith(f"stage {killed} died")
        assert time.monotonic() - began_s < 20.0  # a lease, and what a busy machine needs
        for stage in run.stages:
            assert stage.wait(timeout=60) == 0
    assert left(box, name) == []


def test_a_stopped_stage_is_lost_after_its_lease(start):
    name = uuid.uuid4().hex
    with start(name) as run:
        assert all(run.lines())
        run.tell("go")
        stopped = run.stages.pop(1)
        os.kill(run.pids[1], signal.SIGSTOP)
        try:
            assert [told.split(" ")[0] for told in run.lines()] == ["1", "1"]
        finally:
            os.kill(run.pids[1], signal.SIGCONT)
            stopped.kill()
            stopped.communicate()
        for stage in run.stages:
            assert stage.wait(timeout=60) == 0


def test_a_run_that_was_killed_is_started_again_under_its_name(left, box, start):
    """Each stage draws from its own generator: with the same seeds it is the same run."""
    name = uuid.uuid4().hex
    with start(name) as run:
        first = run.lines()
    assert left(box, name) != []  # what killed stages could not free
    with start(name) as run:
        assert run.lines() == first
        run.tell("end")
        for stage in run.stages:
            assert stage.wait(timeout=60) == 0
    assert left(box, name) == []
    assert first == by_one_process()


def by_one_process() -> list[str]:
    """What the stages print: one process, in which each has a generator state of its own."""
    stages, states = [], []
    for number, sizes in enumerate([(5, 6), (6, 6), (6, 3)]):
        torch.manual_seed(number)
        stages.append(nn.Sequential(nn.Linear(*sizes), nn.Dropout()))
        torch.manual_seed(number)
        states.append(torch.get_rng_state())
    parameters = [parameter for stage in stages for parameter in stage.parameters()]
    losses = []
    for _ in range(3):
        total = 0.0
        for y in torch.ones(8, 5).tensor_split(4):
            for number, stage in enumerate(stages):
                torch.set_rng_state(states[number])
                y = stage(y)  # noqa: PLW2901
                states[number] = torch.get_rng_state()
            loss = F.cross_entropy(y, torch.zeros(2, dtype=torch.int64)) * 0.25
            loss.backward()
            total += loss.item()
        losses.append(total)
        for parameter in parameters:
            parameter.data -= 0.1 * parameter.grad
            parameter.grad = None
    values = [torch.cat([p.detach().flatten() for p in s.parameters()]) for s in stages]
    return [f"{each.numpy().tobytes().hex()} {losses}\n" for each in values]

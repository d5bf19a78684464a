"""Tests of training workers that are killed, end without finish, restart or join late."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator

import pytest

import smbox

WAIT_S = 100.0

PREAMBLE = """
import json, os, sys
import torch
import smbox
from smbox_torch import EASGD, SSP
torch.set_num_threads(1)
settings = json.loads(sys.argv[2])
model = torch.nn.Linear(3, 1)
box = smbox.connect(sys.argv[1], transport=settings.pop("transport", "auto"))
sgd = torch.optim.SGD(model.parameters(), lr=0.01)

def step(opt):
    opt.zero_grad()
    (model(torch.ones(2, 3)) - 1.0).square().mean().backward()
    opt.step()

def say(*words):
    print(json.dumps(words), flush=True)
"""

UNTIL_TOLD = """
opt = EASGD(sgd, box, "run", period=2, lease_s=1.0)
say("begins", opt.steps, opt.rank)
while opt.steps < settings["total"]:
    step(opt)
    if opt.steps == settings.get("stops_at"):
        say("at", opt.steps)
        sys.stdin.readline()
opt.finish(timeout_s=60.0)
say("center", [round(float(p), 6) for p in model.weight.detach().flatten()], opt.team.workers)
"""

BOUNDED = """
opt = SSP(sgd, box, "run", staleness=1, timeout_s=60.0, lease_s=1.0, **settings["ssp"])
say("begins", opt.steps, opt.rank)
for _ in range(settings["steps"]):
    step(opt)
say("done", opt.clocks.mine)
if settings.get("is_paused"):
    sys.stdin.readline()
"""


@pytest.fixture
def box() -> Iterator[smbox.Box]:
    with smbox.local("64MiB") as box:
        yield box


class Worker:
    """A training script in its own process."""

    def __init__(
        self,
        python: str,
        box: smbox.Box,
        script: str,
        rank: int | None = None,
        **settings,
    ):
        environment = {k: v for k, v in os.environ.items() if "RANK" not in k}
        if rank is not None:
            environment |= {"RANK": str(rank), "WORLD_SIZE": "2"}
        self.process = subprocess.Popen(
            [python, "-c", PREAMBLE + script, box.address, json.dumps(settings)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )

    def hear(self, word: str) -> list:
        said = json.loads(self.process.stdout.readline() or "null")
        assert said, "the worker ended"
        assert said[0] == word, said
        return said[1:]

    def go(self) -> None:
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def end(self) -> int:
        self.process.communicate(timeout=WAIT_S)
        return self.process.returncode

    def kill(self) -> None:
        self.process.kill()
        if not self.process.stdout.closed:
            self.process.stdout.read()  # first, because it goes on when its input ends
        self.process.wait(WAIT_S)
        for pipe in (self.process.stdin, self.process.stdout):
            pipe.close()


@pytest.fixture
def start(preloaded: str, box: smbox.Box) -> Iterator[Callable[..., Worker]]:
    """Yield ``start(script, rank, **settings)``; its workers are killed after the test."""
    workers = []

    def start_one(script: str, rank: int | None = None, **settings) -> Worker:
        workers.append(Worker(preloaded, box, script, rank, **settings))
        return workers[-1]

    yield start_one
    for worker in workers:
        worker.kill()


def test_a_killed_worker_that_is_started_again_does_its_missing_steps(start):
    one = start(UNTIL_TOLD, rank=0, total=20, stops_at=1)
    lost = start(UNTIL_TOLD, rank=1, total=20, stops_at=11)
    assert one.hear("begins") == [0, 0]
    assert lost.hear("begins") == [0, 1]
    assert lost.hear("at") == [11]
    lost.kill()
    again = start(UNTIL_TOLD, rank=1, total=20, stops_at=13)
    assert again.hear("begins") == [10, 1]  # its last exchange was at step 10
    assert one.hear("at") == [1]
    one.go()
    assert again.hear("at") == [13]
    again.go()
    center = one.hear("center")[0]
    assert again.hear("center")[0] == center  # both ended with the same model
    assert (one.end(), again.end()) == (0, 0)


def test_the_others_finish_without_a_killed_worker(start):
    one = start(UNTIL_TOLD, rank=0, total=20, stops_at=5)
    lost = start(UNTIL_TOLD, rank=1, total=20, stops_at=3)
    assert one.hear("begins") == [0, 0]
    assert lost.hear("begins") == [0, 1]
    assert lost.hear("at") == [3]
    assert one.hear("at") == [5]
    lost.kill()
    one.go()
    assert one.hear("center")[-1] == 1
    assert one.end() == 0


@pytest.mark.parametrize("transport", ["shm", "tcp"])
@pytest.mark.parametrize("is_killed", [False, True])
def test_nobody_waits_for_the_clock_of_a_worker_that_is_gone(
    start, transport: str, is_killed: bool
):
    settings = {"ssp": {"workers": 2}, "transport": transport}
    gone = start(BOUNDED, steps=1, is_paused=True, **settings)
    assert gone.hear("begins")[0] == 0
    assert gone.hear("done") == [1]
    one = start(BOUNDED, steps=9, **settings)
    assert one.hear("begins")[0] == 0
    if is_killed:
        gone.kill()
    else:  # the script ends without close
        gone.go()
        assert gone.end() == 0
    assert one.hear("done")[0] >= 9
    assert one.end() == 0

"""Tests of a training script under `smbox run` and under torchrun, with a real node."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

TIMEOUT_S = 100.0
TORCHRUN = ("-m", "torch.distributed.run")

SCRIPT = """
import os, signal, sys
import psutil, torch
import smbox
from smbox_torch.hybrid.hybrid import HybridSGD
from smbox_torch.world import World

def kill_the_node():
    for child in psutil.Process(int(os.environ["LAUNCHER"])).children():
        if "memnode" in child.cmdline():
            child.kill()

torch.set_num_threads(1)
world = World.from_env(os.environ)
torch.manual_seed(world.rank)
model = torch.nn.Sequential(torch.nn.Linear(4, 600), torch.nn.Tanh(), torch.nn.Linear(600, 1))
box = smbox.connect(timeout_s=60) if world.is_group_root else None
sgd = torch.optim.SGD(model.parameters(), lr=0.01)
with HybridSGD(sgd, box, "run", period=1, timeout_s=60) as optimizer:
    for step in range(8):
        if "--kill" in sys.argv and (world.rank, step) == (1, 4):
            kill_the_node()
        optimizer.zero_grad()
        x = torch.randn(8, 4)
        (model(x) - x.sum(dim=1, keepdim=True)).square().mean().backward()
        optimizer.step()
    if world.is_group_root:
        box.barrier("end", world.world_size // world.local_world_size)
        center = box.attach("run.float32").get()
        print("center", float(center.sum()), box.transport, flush=True)
        box.barrier("read", world.world_size // world.local_world_size)  # close() moves it
    weights = torch.nn.utils.parameters_to_vector(model.parameters())
    print("group", world.group_rank, weights.detach().double().sum().item(), flush=True)
if box:
    box.close()
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return path


def told(output: str, word: str) -> list[tuple[str, ...]]:
    """Return the values after a word, of all workers that printed it."""
    lines = [line.partition(f"{word} ") for line in output.splitlines()]
    return sorted(tuple(rest.split()) for _, found, rest in lines if found)


SMBOX_RUN = """
import os, typer
os.environ["LAUNCHER"] = str(os.getpid())
from smbox_torch.launching.run import command
app = typer.Typer()
app.command(context_settings=command.context_settings)(command)
app()
"""
RUN = (sys.executable, "-c", SMBOX_RUN)


def test_two_nodes_of_two_workers_train_on_though_their_memory_node_dies(
    preloaded: str, script: Path
):
    options = ["--nodes", "2", "--per-node", "2", "--memory", "64MiB"]
    done = subprocess.run(
        [*RUN, *options, preloaded, str(script), "--kill"],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "starting it again on its memory" in done.stdout
    groups = told(done.stdout, "group")
    assert [number for number, _ in groups] == ["0", "0", "1", "1"]
    assert len(set(groups)) == 2  # equal within a node, perhaps different between nodes
    centers = told(done.stdout, "center")
    assert centers == [centers[0]] * 2
    assert centers[0][1] == "tcp"


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    """Yield the address of a memory node for this test."""
    argv = [sys.executable, "-m", "memnode", "--bind", "tcp://127.0.0.1:0"]
    argv += ["--memory", "64MiB", "--json", "--parent-pid", str(os.getpid())]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as node:
        try:
            yield json.loads(node.stdout.readline())["address"]
        finally:
            node.terminate()
            node.communicate(timeout=TIMEOUT_S)


def test_the_same_script_runs_under_torchrun(preloaded: str, script: Path, address: str):
    done = subprocess.run(
        [preloaded, *TORCHRUN, "--standalone", "--nproc-per-node", "2", str(script)],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
        env=os.environ | {"SMBOX_ADDRESS": address},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    groups = told(done.stdout, "group")
    assert len(groups) == 2
    assert len(set(groups)) == 1
    assert told(done.stdout, "center")[0][1] == "shm"


def test_a_launcher_that_is_killed_leaves_no_process_and_no_memory(tmp_path: Path):
    script = tmp_path / "wait.py"
    script.write_text("import os, signal\nprint(os.environ['SMBOX_ADDRESS'])\nsignal.pause()\n")
    with subprocess.Popen(
        [*RUN, "--memory", "16MiB", str(script)], stdout=subprocess.PIPE, text=True
    ) as launcher:
        assert "tcp://" in launcher.stdout.readline()
        family = psutil.Process(launcher.pid).children(recursive=True)
        launcher.kill()
        launcher.communicate(timeout=TIMEOUT_S)
    assert len(family) == 2
    assert psutil.wait_procs(family, timeout=TIMEOUT_S)[1] == []
    # The node has removed its memory: a test that leaves segments fails.


KILLED = """
import os, signal
import torch
import smbox
from smbox_torch import EASGD
from smbox_torch.world import World

torch.set_num_threads(1)
world = World.from_env(os.environ)
box = smbox.connect(timeout_s=60)
x = torch.nn.Parameter(torch.ones(100))
with EASGD(torch.optim.SGD([x], lr=0.01), box, "run", period=1) as optimizer:
    while optimizer.steps < 20:
        x.grad = torch.ones(100)
        optimizer.step()
        if (world.rank, world.worker_restart, optimizer.steps) == (1, 0, 11):
            os.kill(os.getpid(), signal.SIGKILL)
print("steps", world.rank, world.worker_restart, optimizer.steps, optimizer.workers, flush=True)
box.close()
"""


@pytest.mark.parametrize(("on_failure", "code"), [("continue", 137), ("restart", 0)])
def test_three_of_four_asynchronous_workers_finish_after_one_is_killed(
    preloaded: str, tmp_path: Path, on_failure: str, code: int
):
    script = tmp_path / "train.py"
    script.write_text(KILLED)
    options = ["--per-node", "4", "--memory", "64MiB", "--on-failure", on_failure]
    done = subprocess.run(
        [*RUN, *options, preloaded, str(script)],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == code, done.stdout + done.stderr
    expected = [(str(rank), "0", "20", "4") for rank in (0, 2, 3)]
    again = [("1", "1", "20", "4")] if on_failure == "restart" else []
    assert told(done.stdout, "steps") == sorted([*expected, *again])
    assert "rank 1 (node 0, local rank 1): signal SIGKILL" in done.stdout

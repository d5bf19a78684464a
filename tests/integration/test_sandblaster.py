"""Tests that Sandblaster's iterates do not change by a killed node or by several nodes."""

from __future__ import annotations

import contextlib
import json
import secrets
import subprocess
import threading

import numpy as np
import pytest
import torch

import smbox
from smbox.testing.lbfgs import lbfgs
from smbox_torch import Sandblaster, SandblasterWorker

pytestmark = pytest.mark.shares

WAIT_S = 60.0
COUNT = 300_000  # five stripes of float64
PORTIONS = 3
STEPS = 6
CURVES = torch.logspace(0, 2, COUNT, dtype=torch.float64)


def loss_of(x, portion):
    return (portion + 1) / 6 * (CURVES * (x - 1).square()).sum()


def evaluate(x):
    here = torch.from_numpy(x).requires_grad_()
    loss = sum(loss_of(here, portion) for portion in range(PORTIONS))
    (gradient,) = torch.autograd.grad(loss, here)
    return loss.item(), gradient.numpy()


@contextlib.contextmanager
def helper(make_box, disturb):
    """Run a worker in a thread; it calls ``disturb(computed)`` before each portion."""

    def work():
        x = torch.zeros(COUNT, dtype=torch.float64, requires_grad=True)
        worker = SandblasterWorker(make_box(), [x], rank=0, timeout_s=WAIT_S)

        def loss(portion):
            disturb(worker.computed)
            return loss_of(x, portion)

        worker.run(loss)

    thread = threading.Thread(target=work)
    thread.start()
    yield
    thread.join(WAIT_S)
    assert not thread.is_alive()


def check_iterates(box):
    x = torch.zeros(COUNT, dtype=torch.float64)
    wanted = lbfgs(x.numpy().copy(), evaluate, 3)
    with Sandblaster(box, [x], workers=1, portions=PORTIONS, history=3) as optimizer:
        for _ in range(STEPS):
            done, (there, loss, _) = optimizer.step(), next(wanted)
            assert done.loss == pytest.approx(loss, rel=1e-10)
        np.testing.assert_allclose(optimizer.vectors.x.get(), there, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_a_node_that_is_killed_and_started_again_changes_no_iterate(place, transport):
    killed = []

    def disturb(computed):
        if computed in {4, 7, 14} and computed not in killed:
            killed.append(computed)
            place.restart()

    with helper(lambda: place.box(transport), disturb):
        check_iterates(place.box(transport))
    assert killed == [4, 7, 14]


def test_over_two_nodes_each_computes_on_its_part(preloaded):
    command = [preloaded, "-m", "memnode", "--json", "--nodes", "2", "--memory", "128MiB"]
    command += ["--name", f"two-{secrets.token_hex(4)}", "--bind", "tcp://127.0.0.1:0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            addresses = ",".join(json.loads(process.stdout.readline())["addresses"])
            boxes = [smbox.connect(addresses, timeout_s=WAIT_S) for _ in range(2)]
            with boxes[0], boxes[1], helper(lambda: boxes[1], lambda _: None):
                check_iterates(boxes[0])
                assert len(boxes[0].attach("sandblaster.x").parts) == 2
        finally:
            process.terminate()
            process.wait(WAIT_S)

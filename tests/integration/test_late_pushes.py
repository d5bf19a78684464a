"""Tests that a push that timed out at a stopped node is applied exactly once."""

from __future__ import annotations

import signal

import numpy as np
import pytest
import torch

import smbox
import smbox_torch

pytestmark = pytest.mark.shares

SIZE = 200_000
PLAIN = {"server": "momentum", "settings": {"momentum": 0.0}}


@pytest.mark.parametrize(("kind", "more"), [("Downpour", {}), ("ServerDownpour", PLAIN)])
def test_a_step_that_timed_out_moves_the_center_once(place, kind, more):
    """Each call of step moves every element of the center by -1, the one that raises too."""
    box = place.box("tcp", timeout_s=2.0)
    members = [
        torch.nn.Parameter(torch.zeros(SIZE, dtype=dtype))
        for dtype in (torch.float32, torch.float64)
    ]
    sgd = torch.optim.SGD(members, lr=1.0)
    opt = getattr(smbox_torch, kind)(sgd, box, "run", workers=1, lease_s=60.0, **more)

    def step():
        opt.zero_grad()
        sum(member.sum() for member in members).backward()
        opt.step()

    step()
    place.node.send(signal.SIGSTOP)
    try:
        with pytest.raises(smbox.RequestTimeoutError):
            step()
    finally:
        place.node.send(signal.SIGCONT)
    step()
    step()
    for dtype in ("float32", "float64"):
        np.testing.assert_array_equal(box.attach(f"run.{dtype}").get(), -4.0)
    opt.close()

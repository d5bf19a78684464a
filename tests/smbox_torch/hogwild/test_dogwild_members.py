"""Dogwild's workers as members of a run, and their models' dtypes."""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np
import pytest
import torch

import smbox
from smbox import heartbeat
from smbox.errors import ConfigError, LeaseLostError
from smbox.testing.model_box import ModelBox
from smbox_torch.hogwild.dogwild import Dogwild

LONG_S = 60.0


def test_a_worker_that_died_is_followed_at_the_steps_that_it_streamed():
    def alone(box: smbox.Box) -> Dogwild:
        x = torch.nn.Parameter(torch.ones(3))
        sgd = torch.optim.SGD([x], lr=0.5)
        return Dogwild(sgd, box, "run", pause_s=None, workers=1, lease_s=0.3)

    with smbox.local("32MiB") as box:
        one = alone(box)
        for steps in (3, 2):  # the last two are lost with their worker
            for _ in range(steps):
                one.zero_grad()
                one.step()
            if steps == 3:
                one.stream()
        heartbeat.drop(one.member)
        deadline_s = time.monotonic() + LONG_S
        watcher = smbox.join(box, "run", rank=1, lease_s=LONG_S)
        while watcher.count > 1:
            assert time.monotonic() < deadline_s
            time.sleep(0.01)
        with alone(box) as successor:
            assert (successor.rank, successor.steps, successor.is_master) == (0, 3, True)
            with pytest.raises(LeaseLostError):
                one.stream()


def test_a_wire_is_refused():
    sgd = torch.optim.SGD([torch.nn.Parameter(torch.ones(3))], lr=0.5)
    with pytest.raises(ConfigError, match="wire"):
        Dogwild(sgd, ModelBox(), "run", workers=1, wire="bfloat16")


def test_a_narrow_model_streams_in_float32():
    box = ModelBox()

    def narrow(number: int) -> tuple[torch.nn.Parameter, Dogwild]:
        x = torch.nn.Parameter(torch.ones(3, dtype=torch.bfloat16))
        sgd, options = torch.optim.SGD([x], lr=0.5), {"pause_s": None, "workers": 2}
        return x, Dogwild(sgd, box, "run", is_master=number == 0, **options)

    (x, master), (y, one) = narrow(0), narrow(1)
    y.grad = torch.ones_like(y)
    for optimizer in (one, one, master):
        optimizer.step()
        optimizer.stream()
    master.step()
    for optimizer in (master, one):
        optimizer.stream()
    one.step()
    assert x.tolist() == y.tolist() == [0.0] * 3
    assert box.attach("run.bfloat16").dtype == np.float32
    assert box.attach("run.bfloat16").get().tolist() == [0.0] * 3


def test_a_pass_moves_statistics_by_the_rate_and_counts_its_bytes():
    box, passes = ModelBox(), []
    for number in range(2):
        net = torch.nn.BatchNorm1d(3)  # six weights, six statistics and a count
        sgd, options = torch.optim.SGD(net.parameters(), lr=0.5), {"pause_s": None}
        one = Dogwild(sgd, box, "run", is_master=number == 0, workers=2, model=net, **options)
        passes.append((net, one))
    (net, master), (worked, worker) = passes
    worked.running_mean.fill_(8.0)  # a forward pass
    worker.stream()
    assert worked.running_mean.tolist() == pytest.approx([0.55 * 8.0] * 3)
    master.stream()
    assert net.running_mean.tolist() == pytest.approx([0.45 * 8.0] * 3)
    assert worker.stats().nbytes == (2 * 6 + 2 * 6) * 4 + 2 * 8
    assert master.stats().nbytes == (3 * 6 + 6) * 4 + 2 * 8


class Turning(Dogwild):
    """A master whose streamer begins a turn between two steps of saving and of loading."""

    turn: threading.Thread | None = None

    def begin_turn(self) -> None:
        if self.turn is not None:
            self.turn.start()
            self.turn.join(0.05)

    def _extra_state(self) -> dict[str, Any]:
        extra = super()._extra_state()
        self.begin_turn()
        return extra

    def _load_extra_state(self, extra: dict[str, Any]) -> None:
        self.begin_turn()
        super()._load_extra_state(extra)


@pytest.mark.parametrize("loads", [False, True])
def test_a_turn_of_the_streamer_loses_no_gradient_of_a_checkpoint(loads: bool):
    def made(box: ModelBox) -> Turning:
        x = torch.nn.Parameter(torch.ones(2))
        sgd = torch.optim.SGD([x], lr=1.0)
        return Turning(sgd, box, "run", is_master=True, pause_s=None, workers=1)

    box = ModelBox()
    master = made(box)
    box.attach("run.gradients.float32").put(np.full(2, 5, np.float32))
    if loads:
        state, master = master.state_dict(), made(ModelBox())
    master.turn = threading.Thread(target=master.stream)
    if loads:
        master.load_state_dict(state)
    else:
        state = master.state_dict()
    master.turn.join()
    master.turn = None
    if loads:
        state = master.state_dict()
    (pending,), sums = state["extra"]["pending"], state["centers"][-1]["float32"]
    assert (pending + sums).tolist() == [5, 5]

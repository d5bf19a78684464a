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
from smbox.testing.model_region import ModelRegion
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
            one.flat.tensors[0].data.fill_(9.0)
            with pytest.raises(LeaseLostError):
                one.stream()
            assert box.attach("run.float32").get().tolist() == [1, 1, 1]


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


def pair(*, frozen: bool = False) -> list[tuple[torch.nn.Parameter, Dogwild]]:
    """A master, whose parameter may be frozen, and a worker."""
    box, team = ModelBox(), []
    for number in range(2):
        x = torch.nn.Parameter(torch.ones(2), requires_grad=not (frozen and number == 0))
        sgd, options = torch.optim.SGD([x], lr=1.0), {"pause_s": None, "workers": 2}
        team.append(
            (x, Dogwild(sgd, box, "run", is_master=number == 0, rank=number, **options))
        )
    return team


def test_a_worker_whose_model_was_changed_goes_on_from_the_center():
    _, (x, worker) = pair()
    with torch.no_grad():
        x.add_(1.0)
    with pytest.raises(ConfigError, match="center_into"):
        worker.step()
    worker.center_into(torch.nn.ParameterList([x]))
    worker.step()
    assert x.tolist() == [1, 1]


def test_a_parameter_that_the_master_has_frozen_ignores_the_gradients_of_others():
    (x, master), (y, worker) = pair(frozen=True)
    y.grad = torch.ones(2)
    worker.step()
    worker.stream()
    master.stream()
    master.step()
    assert x.tolist() == [1, 1]


def test_a_gradient_that_was_sent_is_not_sent_again_after_a_load():
    (_, master), (y, worker) = pair()
    y.grad = torch.ones(2)
    worker.step()
    state = worker.state_dict()
    worker.stream()
    worker.load_state_dict(state)
    worker.stream()
    assert master.state_dict()["centers"][-1]["float32"].tolist() == [1, 1]


def test_a_step_during_a_turn_counts_as_sent_by_the_next_one(monkeypatch):
    _, (_, worker) = pair()
    worker.step()
    with monkeypatch.context() as patch:
        patch.setattr(ModelRegion, "accumulate", lambda *_: worker.step())
        worker.stream()
    assert (worker.state_dict()["shared"], worker.steps) == (1, 2)
    worker.stream()
    assert worker.state_dict()["shared"] == 2


def test_a_master_steps_with_sparse_gradients_by_any_rule():
    table = torch.nn.Embedding(3, 2, sparse=True)
    adam = torch.optim.Adam(table.parameters(), lr=0.1)
    master = Dogwild(adam, ModelBox(), "run", is_master=True, pause_s=None, workers=1)
    before = table.weight.detach().clone()
    table(torch.tensor([1])).sum().backward()
    master.step()
    assert ((table.weight - before).abs() > 0.05).tolist()[1] == [True, True]


def test_a_master_whose_step_was_interrupted_repeats_no_streamed_gradient():
    xs = [torch.nn.Parameter(torch.zeros(1)) for _ in range(2)]
    box, sgds = ModelBox(), [torch.optim.SGD([x], lr=1.0) for x in xs]
    master, worker = (
        Dogwild(sgd, box.client(f"w{rank}"), "run", pause_s=None, workers=2, rank=rank)
        for rank, sgd in enumerate(sgds)
    )
    xs[1].grad = -torch.ones(1)
    worker.step()
    for one in (worker, master):
        one.stream()

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    hook = sgds[0].register_step_post_hook(interrupt)
    with pytest.raises(KeyboardInterrupt):
        master.step()
    hook.remove()
    for _ in range(2):
        master.step()
    assert xs[0].tolist() == [1.0]
    for one in (worker, master):
        one.close(exchange=False)

from __future__ import annotations

import copy
import os
import signal
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch

from smbox.errors import ConfigError, LayoutMismatchError, LeaseLostError, RequestTimeoutError
from smbox.roster import regions_of
from smbox_torch.hogwild.hogwild import Hogwild
from smbox_torch.hogwild.hogwild_pp import HogwildPP
from smbox_torch.world import World


def model(seed: int = 3) -> torch.nn.Sequential:
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.Tanh(), torch.nn.Linear(5, 1))


def adam(net: torch.nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(net.parameters(), lr=0.02)


def train(net: torch.nn.Module, optimizer: Any, steps: range) -> None:
    for t in steps:
        x = torch.randn(8, 4, generator=torch.Generator().manual_seed(t))
        optimizer.zero_grad()
        (net(x) - x.sum(dim=1, keepdim=True)).square().mean().backward()
        optimizer.step()


def values(net: torch.nn.Module) -> bytes:
    return torch.nn.utils.parameters_to_vector(net.parameters()).detach().numpy().tobytes()


@pytest.mark.parametrize("state", ["shared", "private"])
def test_one_worker_is_the_plain_optimizer_bit_for_bit(open_box, state: str):
    net, alone = model(), model()
    with Hogwild(adam(net), open_box(), "run", state=state) as optimizer:
        train(net, optimizer, range(5))
        assert optimizer.stats().steps == 5
    train(alone, adam(alone), range(5))
    assert values(net) == values(alone)


@pytest.mark.parametrize("state", ["shared", "private"])
def test_workers_in_turns_are_optimizers_on_one_model(open_box, state: str):
    nets = [model(seed) for seed in (3, 4)]
    workers = [Hogwild(adam(net), open_box(), "run", state=state) for net in nets]
    assert values(nets[0]) == values(nets[1])
    alone = model()
    plain = [adam(alone)] * 2 if state == "shared" else [adam(alone), adam(alone)]
    for t in range(6):
        train(nets[t % 2], workers[t % 2], range(t, t + 1))
        train(alone, plain[t % 2], range(t, t + 1))
    assert values(nets[0]) == values(nets[1]) == values(alone)
    for worker in workers:
        worker.close()


def test_workers_at_once_bring_the_one_model_down(open_box):
    @torch.no_grad()
    def loss(net: torch.nn.Module) -> float:
        x = torch.randn(64, 4, generator=torch.Generator().manual_seed(1234))
        return float((net(x) - x.sum(dim=1, keepdim=True)).square().mean())

    nets = [model() for _ in range(3)]
    before = loss(nets[0])
    workers = [Hogwild(adam(net), open_box(), "run", state="shared") for net in nets]
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(train, nets, workers, [range(i, 300, 3) for i in range(3)]))
    step = workers[0].state[nets[0][0].weight]["step"].item()
    assert loss(nets[1]) < before / 4
    assert 100 <= step <= 300  # a lost count is tolerated like any other lost update
    for worker in workers:
        worker.close()


def test_a_run_resumes_exactly_and_one_worker_restores(open_box):
    whole = model()
    with Hogwild(adam(whole), open_box(), "first", state="shared") as optimizer:
        train(whole, optimizer, range(3))
        saved = optimizer.state_dict()
        train(whole, optimizer, range(3, 6))
    nets = [model(9) for _ in range(2)]
    workers = [Hogwild(adam(net), open_box(), "second", state="shared") for net in nets]
    workers[0].load_state_dict(saved)
    train(nets[0], workers[0], range(3, 5))
    workers[1].load_state_dict(saved)  # too late to restore: it joins in
    train(nets[1], workers[1], range(5, 6))
    assert values(nets[0]) == values(nets[1]) == values(whole)
    for worker in workers:
        worker.close()


def test_whoever_leaves_keeps_a_copy(open_box):
    nets = [model(), model()]
    first, second = (Hogwild(adam(net), open_box(), "run", state="shared") for net in nets)
    train(nets[0], first, range(2))
    first.close()
    left = values(nets[0])
    train(nets[1], second, range(2, 4))
    assert values(nets[0]) == left != values(nets[1])
    train(nets[0], first.inner, range(2, 4))
    assert values(nets[0]) == values(nets[1])
    second.close()


def test_a_model_that_leaves_the_shared_memory_is_noticed(open_box):
    nets = [model(), model()]
    workers = [Hogwild(adam(net), open_box(), "run") for net in nets]
    nets[1].double().float()
    with pytest.raises(ConfigError, match="not in the shared memory"):
        train(nets[1], workers[1], range(1))
    train(nets[0], workers[0], range(1))
    for worker in workers:
        worker.close()
    with pytest.raises(ConfigError, match="was closed"):
        train(nets[0], workers[0], range(1, 2))
    train(nets[0], workers[0].inner, range(1, 2))  # on its own copy


def test_finish_waits_for_the_others_and_leaves_the_common_model(open_box):
    nets = [model(), model()]
    workers = [Hogwild(adam(net), open_box(), "run") for net in nets]
    train(nets[0], workers[0], range(3))
    with pytest.raises(RequestTimeoutError, match="rank 1"):
        workers[0].finish(timeout_s=0.05)
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(workers[0].finish)
        train(nets[1], workers[1], range(3))
        assert not first.done()
        workers[1].finish()
        first.result()
    assert values(nets[0]) == values(nets[1])
    with torch.no_grad():
        nets[0][0].weight.add_(1.0)  # its own by now
    assert values(nets[0]) != values(nets[1])


def test_finish_does_not_wait_for_a_worker_that_left(open_box):
    nets = [model(), model()]
    workers = [Hogwild(adam(net), open_box(), "run") for net in nets]
    train(nets[1], workers[1], range(3))
    workers[1].close()
    workers[0].finish(timeout_s=5.0)
    assert values(nets[0]) == values(nets[1])


def test_impossible_arguments_are_refused(open_box):
    with pytest.raises(ConfigError, match="state"):
        Hogwild(adam(model()), open_box(), "run", state="common")
    with pytest.raises(ConfigError, match="CPU"):
        Hogwild(adam(model().to("meta")), open_box(), "run")


def test_memory_that_cannot_be_mapped_is_refused():
    class Far:
        """A box on another host."""

        def create(self, *_: object, init: np.ndarray | None = None, **__: object) -> Far:
            self.init = init
            return self

        counter = barrier = create

        def get(self) -> np.ndarray:
            return self.init

        def local(self) -> None:
            raise ConfigError("no local view: the node is on another host")

    net = model()
    before = values(net)
    with pytest.raises(ConfigError, match=r"smbox run --per-node N.* no local view: "):
        Hogwild(adam(net), Far(), "run")
    assert values(net) == before


def test_the_state_of_another_optimizer_is_refused(open_box):
    x = torch.nn.Parameter(torch.zeros(3))
    sgd = torch.optim.SGD([x], lr=0.1)
    optimizer = Hogwild(sgd, open_box(), "run")
    with pytest.raises(ConfigError, match="another algorithm"):
        optimizer.load_state_dict({**optimizer.state_dict(), "algorithm": "Downpour"})
    optimizer.close()


def test_a_state_of_the_worker_itself_leaves_the_model_restorable(open_box):
    """accelerate loads the state of what it prepares; a checkpoint that follows is restored."""
    net = model()
    with Hogwild(adam(net), open_box(), "old") as optimizer:
        train(net, optimizer, range(3))
        checkpoint = optimizer.state_dict()
        saved = values(net)
    net = model(seed=5)
    with Hogwild(adam(net), open_box(), "run") as optimizer:
        optimizer.load_state_dict(optimizer.state_dict())
        optimizer.load_state_dict(checkpoint)
        assert values(net) == saved


@pytest.mark.parametrize("kind", [Hogwild, HogwildPP])
def test_a_resumed_worker_does_the_missing_steps_only(open_box, kind: type):
    more = {"clusters": 1, "world": World()} if kind is HogwildPP else {}
    before, x = torch.nn.Parameter(torch.zeros(3)), torch.nn.Parameter(torch.zeros(3))
    with kind(torch.optim.SGD([before], lr=0.1), open_box(), "first", **more) as optimizer:
        for _ in range(3):
            before.grad = -torch.ones(3)
            optimizer.step()
        saved = copy.deepcopy(optimizer.state_dict())
    optimizer = kind(torch.optim.SGD([x], lr=0.1), open_box(), "second", **more)
    optimizer.load_state_dict(saved)
    assert optimizer.steps == 3
    while optimizer.steps < 5:
        x.grad = -torch.ones(3)
        optimizer.step()
    assert x.tolist() == pytest.approx([0.5] * 3)
    optimizer.close()


@pytest.mark.parametrize("is_inside", [False, True])
@pytest.mark.parametrize("state", ["shared", "private"])
def test_the_state_of_a_plain_optimizer_sets_the_one_inside(
    open_box, state: str, is_inside: bool
):
    plain, x = torch.nn.Parameter(torch.ones(3)), torch.nn.Parameter(torch.zeros(3))
    sgd = torch.optim.SGD([plain], lr=0.5, momentum=0.9)
    plain.grad = torch.ones(3)
    sgd.step()
    inner = torch.optim.SGD([x], lr=0.1, momentum=0.9)
    with Hogwild(inner, open_box(), "run", state=state) as optimizer:
        (inner if is_inside else optimizer).load_state_dict(sgd.state_dict())
        assert optimizer.param_groups[0]["lr"] == 0.5
        momentum = 1.0 if state == "private" else 0.0  # a shared one is everybody's
        assert optimizer.state[x]["momentum_buffer"].tolist() == [momentum] * 3
        assert (optimizer.steps, x.tolist()) == (0, [0.0] * 3)


def test_a_forked_child_takes_no_step_for_its_parent(open_box, monkeypatch):
    net = model()
    with Hogwild(adam(net), open_box(), "run") as optimizer:
        train(net, optimizer, range(1))
        before, here = values(net), os.getpid()
        with monkeypatch.context() as patched:
            patched.setattr(os, "getpid", lambda: here + 1)
            with pytest.raises(LeaseLostError, match="parent process"):
                train(net, optimizer, range(1))
        assert (values(net), optimizer.steps) == (before, 1)
        train(net, optimizer, range(1))


def test_a_close_that_was_interrupted_leaves_a_copy_when_called_again(open_box, monkeypatch):
    nets = [model(), model()]
    first, second = (Hogwild(adam(net), open_box(), "run", state="shared") for net in nets)
    before = values(nets[0])
    with monkeypatch.context() as patch:
        patch.setattr(torch.Tensor, "clone", lambda _: signal.raise_signal(signal.SIGINT))
        with pytest.raises(KeyboardInterrupt):
            first.close()
    first.close()
    train(nets[1], second, range(2))
    assert values(nets[0]) == before
    second.close()


def test_a_worker_that_is_refused_shares_no_state(open_box):
    box, inner = open_box(), adam(model())
    box.create(regions_of("run")[0], shape=2)  # another program's
    with pytest.raises(LayoutMismatchError):
        Hogwild(inner, box, "run", state="shared")
    assert not inner.state


def test_all_workers_share_the_state_or_none(open_box):
    first = Hogwild(adam(model()), open_box(), "run", state="shared")
    with first, pytest.raises(ConfigError, match="state private here and shared"):
        Hogwild(adam(model()), open_box(), "run", state="private")

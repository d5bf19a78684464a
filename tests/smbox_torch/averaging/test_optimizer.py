"""What all classes that average gradients have in common, on ranks that are threads."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
import torch

from smbox.errors import ConfigError, LayoutMismatchError, StepMismatchError
from smbox.testing.model_box import ModelBox
from smbox_torch.averaging.optimizer import AveragingOptimizer
from smbox_torch.averaging.parameter_server import ParameterServer
from smbox_torch.averaging.ring_all_reduce import RingAllReduce
from smbox_torch.averaging.sync_group import SyncGroup
from smbox_torch.hybrid.hybrid import HybridSGD
from smbox_torch.world import World

RANKS = 3
LONG_S = 60.0
KINDS = ["host", "hybrid", "hybrid-seasgd", "ring", "box"]
SEEDING = threading.Lock()  # torch has one generator for all threads

Wrap = Callable[..., AveragingOptimizer]


@pytest.fixture(params=KINDS)
def wrap(request) -> Wrap:
    """``wrap(world, optimizer, model=None)`` on each rank of one run."""
    box, addresses, met = ModelBox(), [""] * RANKS, threading.Barrier(RANKS)

    def make(world: World, optimizer, model=None) -> AveragingOptimizer:
        def exchange(address: str) -> list[str]:
            addresses[world.rank] = address
            if world.world_size > 1:
                met.wait(LONG_S)
            return addresses[: world.world_size]

        client = box.client(f"w{world.rank}")
        if request.param == "host":
            return SyncGroup(optimizer, model, world=world, bucket_nbytes=64)
        if request.param.startswith("hybrid"):
            exchange = "seasgd" if request.param == "hybrid-seasgd" else "elastic"
            return HybridSGD(
                optimizer,
                client,
                "run",
                model=model,
                world=world,
                period=2,
                timeout_s=LONG_S,
                exchange=exchange,
            )
        if request.param == "ring":
            return RingAllReduce(optimizer, model, world=world, exchange=exchange)
        return ParameterServer(
            optimizer, client, "run", model=model, rank=world.rank, workers=world.world_size
        )

    return make


def model() -> torch.nn.Sequential:
    with SEEDING:
        torch.manual_seed(3)
        return torch.nn.Sequential(
            torch.nn.Linear(4, 5),
            torch.nn.BatchNorm1d(5),
            torch.nn.Tanh(),
            torch.nn.Linear(5, 1),
        )


def batch(rank: int, step: int, size: int = 4) -> torch.Tensor:
    return torch.randn(size, 4, generator=torch.Generator().manual_seed(10 * step + rank))


def backward(net: torch.nn.Module, rank: int, step: int) -> None:
    net(batch(rank, step)).square().mean().backward()


def sgd(net: torch.nn.Module) -> torch.optim.SGD:
    return torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.5)


def state(net: torch.nn.Module) -> bytes:
    return b"".join(tensor.numpy().tobytes() for tensor in net.state_dict().values())


def test_gradients_are_the_mean_once_backward_is_over(run_ranks, wrap: Wrap):
    def work(world: World):
        net = model()
        with wrap(world, sgd(net), net) as optimizer:
            backward(net, world.rank, 0)
            found = [p.grad.clone() for p in net.parameters()]
            optimizer.step()
        return found

    results = run_ranks(RANKS, work)
    alone = [model() for _ in range(RANKS)]
    for rank, net in enumerate(alone):
        backward(net, rank, 0)
    for index, expected in enumerate(zip(*(net.parameters() for net in alone), strict=True)):
        mean = torch.stack([p.grad for p in expected]).mean(dim=0)
        for found in results:
            assert torch.equal(found[index], results[0][index])
            torch.testing.assert_close(found[index], mean, rtol=1e-5, atol=1e-6)


def test_a_step_that_all_ranks_skip_leaves_them_alike(run_ranks, wrap: Wrap):
    """As a gradient scaler does: the infinity of one rank is in the mean of all."""

    def work(world: World):
        net = model()
        with wrap(world, sgd(net), net) as optimizer:
            taken = []
            for step in range(4):
                optimizer.zero_grad()
                loss = net(batch(world.rank, step)).square().mean()
                (loss * (float("inf") if (step, world.rank) == (1, 2) else 1.0)).backward()
                gradients = [p.grad for p in net.parameters()]
                if all(bool(gradient.isfinite().all()) for gradient in gradients):
                    taken.append(step)
                    optimizer.step()
        return taken, state(net)

    results = run_ranks(RANKS, work)
    assert [taken for taken, _ in results] == [[0, 2, 3]] * RANKS
    assert len({found for _, found in results}) == 1


def test_torchs_gradient_scaler_skips_on_all_ranks_or_none(run_ranks, wrap: Wrap):
    def work(world: World):
        net = model()
        scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
        with wrap(world, sgd(net), net) as optimizer:
            for step in range(3):
                optimizer.zero_grad()
                loss = net(batch(world.rank, step)).square().mean()
                if (step, world.rank) == (1, 0):
                    loss = loss * float("inf")
                scaler.scale(loss).backward()
                scaler.unscale_(optimizer)
                torch.nn.utils.clip_grad_norm_(net.parameters(), 0.5)
                scaler.step(optimizer)
                scaler.update()
        return scaler.get_scale(), state(net)

    results = run_ranks(RANKS, work)
    assert set(results) == {results[0]}
    assert results[0][0] == 2.0


def test_a_step_that_one_rank_skips_is_an_error_on_all_that_names_it(run_ranks, wrap: Wrap):
    def steps(optimizer, net: torch.nn.Module, rank: int) -> None:
        for step in range(3):  # a root whose exchange follows the step may tell in it
            optimizer.zero_grad()
            backward(net, rank, step)
            if (step, rank) != (1, 1):
                optimizer.step()

    def work(world: World):
        net = model()
        mismatch = pytest.raises(StepMismatchError, match="rank 1 skipped")
        with wrap(world, sgd(net), net) as optimizer, mismatch as caught:
            steps(optimizer, net, world.rank)
        return caught.value.facts["ranks"]

    assert run_ranks(RANKS, work) == [[1]] * RANKS


def test_weights_no_sync_and_join_mean_the_same(run_ranks, wrap: Wrap):
    """Rank r has r + 1 steps of two batches each, of weight r + 1, with clipped gradients."""

    def work(world: World):
        net = model()
        inner = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
        optimizer = wrap(world, inner, net)
        optimizer.weight = world.rank + 1
        with optimizer.join():
            for step in range(world.rank + 1):
                optimizer.zero_grad()
                with optimizer.no_sync():
                    backward(net, world.rank, 2 * step)
                before = [p.grad.clone() for p in net.parameters()]
                backward(net, world.rank, 2 * step + 1)
                assert any(
                    not torch.equal(p.grad, old)
                    for p, old in zip(net.parameters(), before, strict=True)
                )
                torch.nn.utils.clip_grad_norm_(net.parameters(), 1e-3)
                optimizer.step()
        optimizer.close()
        momenta = [inner.state[each]["momentum_buffer"].tolist() for each in net.parameters()]
        return (state(net), str(momenta)), net

    results = run_ranks(RANKS, work)
    assert len({found for found, _ in results}) == 1
    counts = results[0][1][1].num_batches_tracked
    # Two each: those of rank 0, then of rank 1, then of rank 2, the first that had a batch.
    assert int(counts) == 2 * RANKS


def test_buffers_are_in_step_on_all_ranks(run_ranks, wrap: Wrap):
    def work(world: World):
        net = model()
        with torch.no_grad():
            net[1].running_mean.add_(world.rank)
        with wrap(world, sgd(net), net) as optimizer:
            for step in range(3):
                optimizer.zero_grad()
                backward(net, world.rank, step)
                optimizer.step()
        return int(net[1].num_batches_tracked), net[1].running_mean.numpy().tobytes()

    results = run_ranks(RANKS, work)
    assert set(results) == {results[0]}
    assert results[0][0] == 3


def parameters(*tensors: torch.Tensor) -> torch.optim.SGD:
    return torch.optim.SGD([torch.nn.Parameter(each) for each in tensors], lr=0.1)


@pytest.mark.parametrize(
    ("tensors", "words"),
    [
        ([torch.zeros(2, dtype=torch.complex64)], "leave others out"),
        ([torch.zeros(2), torch.zeros(2, device="meta")], "one device"),
        ([torch.zeros(2, device="meta")], "one device"),
    ],
)
def test_what_has_no_mean_is_refused_before_anything_happens(wrap, worlds, tensors, words):
    with pytest.raises(ConfigError, match=words):
        wrap(worlds(1, 1)[0], parameters(*tensors))


def test_only_frozen_parameters_are_refused(wrap: Wrap, worlds):
    frozen = torch.optim.SGD([torch.nn.Parameter(torch.ones(2), requires_grad=False)], lr=0.1)
    with pytest.raises(ConfigError, match="require gradients"):
        wrap(worlds(1, 1)[0], frozen)


def test_sparse_gradients_are_refused(wrap: Wrap, worlds):
    net = torch.nn.Embedding(4, 2, sparse=True)
    before = net.weight.detach().clone()
    with wrap(worlds(1, 1)[0], torch.optim.SGD(net.parameters(), lr=0.1), net):
        with pytest.raises(ConfigError, match=r"accepts them .*EASGD"):
            net(torch.tensor([1])).sum().backward()
        assert torch.equal(net.weight, before)


@pytest.mark.parametrize("what", ["parameter", "buffer", "module"])
def test_a_tensor_of_the_model_that_was_replaced_is_an_error(wrap: Wrap, worlds, what: str):
    net = model()
    with wrap(worlds(1, 1)[0], sgd(net), net) as optimizer:
        if what == "parameter":
            net[0].bias = torch.nn.Parameter(torch.zeros(5))
        elif what == "buffer":
            net[1].running_mean = torch.zeros(5)
        else:
            net[3] = torch.nn.Linear(5, 1)
        with pytest.raises(ConfigError, match="was replaced"):
            backward(net, 0, 0)
        with pytest.raises(ConfigError, match="was replaced"):
            optimizer.step()


def test_a_parameter_that_was_converted_is_an_error(wrap: Wrap, worlds):
    weight = torch.nn.Parameter(torch.ones(3))
    with wrap(worlds(1, 1)[0], torch.optim.SGD([weight], lr=0.1)):
        weight.data = torch.ones(4)
        with pytest.raises(ConfigError, match="convert"):
            weight.sum().backward()


def test_a_name_that_another_model_has_is_refused():
    box = ModelBox()
    for size, error in ((3, None), (4, LayoutMismatchError)):
        optimizer = parameters(torch.zeros(size))
        if error is None:
            ParameterServer(optimizer, box, "run", rank=0, workers=1)
        else:
            with pytest.raises(error):
                ParameterServer(optimizer, box, "run", rank=0, workers=1)


def test_the_common_parameters_and_buffers_are_what_is_evaluated(run_ranks, wrap: Wrap):
    def work(world: World):
        net, other = model(), model()
        with wrap(world, sgd(net), net) as optimizer:
            backward(net, world.rank, 0)
            optimizer.step()
            optimizer.center_into(other)
            # The center of HybridSGD is elsewhere: behind the group.
            return state(net) == state(other), isinstance(optimizer, HybridSGD)

    for is_common, is_hybrid in run_ranks(RANKS, work):
        assert is_common != is_hybrid

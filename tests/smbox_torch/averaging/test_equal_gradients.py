"""Ranks that read the same batches, because a script sets a fixed seed, are told so once."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext

import pytest
import torch

from smbox_torch import EqualGradientsWarning, ParameterServer, SyncGroup
from smbox_torch.averaging.equal_gradients import FirstGradient
from smbox_torch.averaging.optimizer import AveragingOptimizer
from smbox_torch.world import World

Wrap = Callable[[World, torch.optim.Optimizer], AveragingOptimizer]


@pytest.fixture(params=["mapped memory", "memory box"])
def wrap(request: pytest.FixtureRequest, open_box: Callable[[], object]) -> Wrap:
    """Wraps a rank's optimizer; ranks meet in mapped memory or at a memory node."""
    if request.param == "mapped memory":
        return lambda world, sgd: SyncGroup(sgd, world=world)
    boxes = [open_box() for _ in range(3)]
    return lambda world, sgd: ParameterServer(
        sgd, boxes[world.rank], "run", rank=world.rank, workers=world.world_size
    )


def told(
    members: list[World],
    wrap: Wrap,
    inputs: Callable[[int, int], torch.Tensor],
    *,
    begins_at: int = 0,
) -> list[str]:
    """The warnings about equal gradients in two steps of each rank, on ``inputs(rank, step)``.

    Args:
        members: the ranks.
        wrap: wraps their optimizers.
        inputs: returns a batch.
        begins_at: first rank that has batches; those below follow the others.
    """

    def work(world: World) -> None:
        net = torch.nn.Linear(3, 2)
        sgd = torch.optim.SGD(net.parameters(), lr=0.1)
        with wrap(world, sgd) as optimizer:
            joined: AbstractContextManager[None] = nullcontext()
            if begins_at:
                joined = optimizer.join()
            with joined:
                for step in range(2 if world.rank >= begins_at else 0):
                    optimizer.zero_grad()
                    net(inputs(world.rank, step)).square().sum().backward()
                    optimizer.step()

    with warnings.catch_warnings(record=True) as caught, ThreadPoolExecutor(3) as pool:
        warnings.simplefilter("always")
        for each in [pool.submit(work, world) for world in members]:
            each.result()
    found = [each for each in caught if each.category is EqualGradientsWarning]
    return [str(each.message) for each in found]


@pytest.mark.parametrize("ranks", [2, 3])
def test_ranks_with_the_same_batches_are_told_once(worlds, wrap: Wrap, ranks: int):
    messages = told(worlds(1, ranks), wrap, lambda rank, step: torch.full((4, 3), step + 1.7))
    assert len(messages) == ranks
    assert all(f"of {ranks} ranks are equal" in each for each in messages)
    assert "torch.manual_seed(seed + rank)" in messages[0]


def test_ranks_with_their_own_batches_are_not(worlds, wrap: Wrap):
    inputs = torch.randn(2, 2, 4, 3)
    assert told(worlds(1, 2), wrap, lambda rank, step: inputs[rank, step]) == []


def test_nor_a_rank_that_is_the_only_one_with_batches(worlds, wrap: Wrap):
    x = torch.randn(4, 3)
    assert told(worlds(1, 2), wrap, lambda *_: x, begins_at=1) == []


def test_nor_a_rank_alone(worlds, wrap: Wrap):
    assert told(worlds(1, 1), wrap, lambda *_: torch.ones(4, 3)) == []


def test_nor_ranks_without_a_gradient_that_could_differ(worlds, wrap: Wrap):
    assert told(worlds(1, 2), wrap, lambda *_: torch.zeros(4, 3)) == []


def test_nor_ranks_whose_first_gradients_overflow(worlds, wrap: Wrap):
    """As with a GradScaler; they may be infinite whatever the batch."""
    inputs = torch.full((2, 4, 3), 1e30) + torch.tensor([0.0, 1e29])[:, None, None]
    assert told(worlds(1, 2), wrap, lambda rank, _: inputs[rank]) == []


def test_the_first_gradients_that_could_differ_count(worlds, wrap: Wrap):
    messages = told(worlds(1, 2), wrap, lambda _, step: torch.full((4, 3), step * 1.7))
    assert len(messages) == 2


def compare(own: torch.Tensor, mean: torch.Tensor, ranks: int) -> None:
    """Compare a gradient with a mean."""
    parameter = torch.nn.Parameter(torch.zeros_like(own))
    first = FirstGradient([parameter])
    parameter.grad = own
    first.take(0)
    parameter.grad = mean
    first.compare(ranks)


def test_the_rounding_of_many_ranks_hides_nothing():
    own = torch.linspace(1, 2, 1000)
    total = torch.zeros_like(own)
    for _ in range(64):
        total += own
    with pytest.warns(EqualGradientsWarning, match="of 64 ranks"):
        compare(own, total / 64, 64)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_makes_no_other_batches_equal(dtype: torch.dtype):
    own = torch.ones(1, dtype=dtype)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        compare(own, own + torch.finfo(dtype).eps, 2)
    with pytest.warns(EqualGradientsWarning):
        compare(own, own.clone(), 2)

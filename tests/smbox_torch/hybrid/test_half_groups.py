"""Groups of HybridSGD that train a model of 16 bits: all ranks have the same master values."""

from __future__ import annotations

import pytest
import torch

from smbox.testing.model_box import ModelBox
from smbox_torch import HybridSGD
from smbox_torch.world import World

SIZE = 500


def model() -> torch.nn.Sequential:
    return torch.nn.Sequential(torch.nn.BatchNorm1d(SIZE, affine=False), Scale()).bfloat16()


class Scale(torch.nn.Module):
    """Multiplies by parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.linspace(0.5, 2.0, SIZE))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.weight


def train(world: World, box: ModelBox, steps: int, *, evaluates: bool = False, **options):
    """Return the parameters, statistics and master values of this rank after each step."""
    net, found = model(), []
    generator = torch.Generator().manual_seed(world.rank)
    options |= {"model": net, "world": world, "groups": 2, "moving_rate": 0.3}
    sgd = torch.optim.SGD(net.parameters(), lr=0.05)
    with HybridSGD(sgd, box, "run", **options) as optimizer:
        for _ in range(steps):
            optimizer.zero_grad()
            net(torch.randn(4, SIZE, generator=generator).bfloat16()).square().sum().backward()
            optimizer.step()
            if evaluates and world.rank == 1:
                optimizer.eval()
                optimizer.train()
            state = optimizer.state_dict()
            values = [*state["parameters"].values(), *state["buffers"].values()]
            found.append([each.tolist() for each in (*net.state_dict().values(), *values)])
    return found


@pytest.mark.parametrize("exchange", ["elastic", "seasgd"])
@pytest.mark.parametrize("overlap", [False, True])
def test_ranks_of_a_late_group_have_the_same_master_values(
    run_ranks, overlap: bool, exchange: str
):
    """The center has more bits than the model with which the late group begins."""
    box, options = ModelBox(), {"overlap": overlap, "exchange": exchange}
    run_ranks(1, lambda world: train(world, box, 5, **options))
    first, second = run_ranks(2, lambda world: train(world, box, 5, **options))
    assert first == second


def test_a_rank_that_evaluates_alone_keeps_its_values(run_ranks):
    box = ModelBox()
    run_ranks(1, lambda world: train(world, box, 5))
    first, second = run_ranks(2, lambda world: train(world, box, 60, evaluates=True))
    assert first == second


def test_ranks_have_the_same_master_values_after_unequally_many_clipped_batches(run_ranks):
    """A rank without batches does not clip, so its parameters differ until all are done."""
    box = ModelBox()

    def work(world: World) -> list[list[list[float]]]:
        net, found = model(), []
        sgd = torch.optim.SGD(net.parameters(), lr=0.05)
        options = {"model": net, "world": world, "groups": 2, "moving_rate": 0.3}
        generator = torch.Generator().manual_seed(world.rank)

        def step(optimizer: HybridSGD) -> None:
            optimizer.zero_grad()
            net(torch.randn(4, SIZE, generator=generator).bfloat16()).square().sum().backward()
            torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            optimizer.step()

        with HybridSGD(sgd, box, "run", **options) as optimizer:
            with optimizer.join():
                for _ in range(3 + 3 * world.rank):
                    step(optimizer)
            for _ in range(3):
                (values,) = optimizer.state_dict()["parameters"].values()
                found.append([net[1].weight.detach().tolist(), values.tolist()])
                step(optimizer)
        return found

    run_ranks(1, lambda world: train(world, box, 5))
    first, second = run_ranks(2, work)
    are_same = first == second  # without a long comparison of the lists
    assert are_same

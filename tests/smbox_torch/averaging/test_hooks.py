"""Hooks of a script that change gradients while backward runs, on all ranks alike."""

from __future__ import annotations

import pytest
import torch

from smbox.testing.model_box import ModelBox
from smbox_torch import HybridSGD, SyncGroup
from smbox_torch.world import World

RANKS = 2
SIZE = 64  # elements: each rank averages a part of them


def wrap(kind: str, sgd: torch.optim.Optimizer, world: World, box: ModelBox) -> SyncGroup:
    options = {"world": world, "bucket_nbytes": 4 * SIZE, "timeout_s": 60.0}
    if kind == "host":
        return SyncGroup(sgd, **options)
    return HybridSGD(sgd, box, "run", overlap=kind == "overlap", **options)


def scale(parameter: torch.Tensor) -> None:
    parameter.grad.mul_(10.0)


def replace(parameter: torch.Tensor) -> None:
    parameter.grad = parameter.grad * 10.0


@pytest.mark.parametrize("change", [scale, replace])
@pytest.mark.parametrize("is_near", [True, False])  # whether the gradient is in shared memory
@pytest.mark.parametrize("kind", ["host", "hybrid", "overlap"])
def test_a_hook_registered_after_wrapping_changes_what_is_averaged(
    run_ranks, kind: str, is_near: bool, change
):
    box = ModelBox()

    def work(world: World) -> list[list[float]]:
        values = [torch.zeros(2, SIZE // 2) for _ in range(3)]
        weights = [
            torch.nn.Parameter(each if is_near else each.t().contiguous().t())
            for each in values
        ]
        client, found = box.client(f"w{world.rank}"), []
        with wrap(kind, torch.optim.SGD(weights, lr=1.0), world, client) as optimizer:
            for weight in weights:
                weight.register_post_accumulate_grad_hook(change)
            for _ in range(2):
                optimizer.zero_grad(set_to_none=False)
                sum(w.sum() * (world.rank + 1.0) for w in weights).backward()
                found += [weight.grad.unique().tolist() for weight in weights]
                optimizer.step()
        return found

    assert run_ranks(RANKS, work) == [[[15.0]] * 6] * RANKS

from __future__ import annotations

import pytest
import torch

from smbox.errors import ConfigError
from smbox_torch.averaging.packed import Packed, packed_nbytes, share
from smbox_torch.averaging.sync_group import SyncGroup
from smbox_torch.world import World


def tensors(value: float) -> list[torch.Tensor]:
    return [
        torch.full((2, 3), value),
        torch.tensor(int(value)),
        torch.full((5,), value, dtype=torch.bfloat16),
    ]


def test_tensors_of_all_dtypes_travel_as_bytes():
    mine, yours = tensors(7.0), tensors(1.0)
    memory = torch.zeros(packed_nbytes(mine), dtype=torch.uint8)
    Packed(mine, memory).store()
    Packed(yours, memory).load()
    for tensor, expected in zip(yours, mine, strict=True):
        assert torch.equal(tensor, expected)


def test_all_ranks_get_what_the_first_one_has(run_ranks):
    def work(world: World) -> list[float]:
        held = tensors(world.rank + 1.0)
        share(held, world, "begin", 60.0)
        return [float(tensor.flatten()[0]) for tensor in held]

    assert run_ranks(3, work) == [[1.0] * 3] * 3


def test_frozen_parameters_begin_alike_and_stay_frozen(run_ranks):
    def work(world: World) -> list[float]:
        frozen = torch.nn.Parameter(torch.full((3,), world.rank + 1.0), requires_grad=False)
        free = torch.nn.Parameter(torch.ones(3))
        with SyncGroup(torch.optim.SGD([frozen, free], lr=0.1), world=world) as group:
            (frozen * free).sum().backward()
            group.step()
            frozen.requires_grad_(True)
            with pytest.raises(ConfigError, match="frozen"):
                group.step()
        return [*frozen.tolist(), *free.tolist()]

    for found in run_ranks(2, work):
        assert found == pytest.approx([1, 1, 1, 0.9, 0.9, 0.9])

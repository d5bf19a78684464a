from __future__ import annotations

import numpy as np
import pytest
import torch

from smbox.errors import ConfigError, WorkerLostError
from smbox_torch.publisher import PUBLISHED, Publisher, state_nbytes
from smbox_torch.rendezvous import ROW_WORDS, Rendezvous
from smbox_torch.sync_group import SyncGroup
from smbox_torch.world import World


def tensors(value: float) -> list[torch.Tensor]:
    return [
        torch.full((2, 3), value),
        torch.tensor(int(value)),
        torch.full((5,), value, dtype=torch.bfloat16),
    ]


@pytest.fixture
def ranks() -> list[Rendezvous]:
    rows = np.zeros((2, ROW_WORDS), np.uint64)
    made = [Rendezvous(rows, rank, timeout_s=60.0) for rank in range(2)]
    for each in made:
        each.enter()
    return made


def test_everybody_has_the_tensors_of_the_source_whoever_that_is(ranks: list[Rendezvous]):
    mine = [tensors(rank + 1.0) for rank in range(2)]
    shared = torch.zeros(state_nbytes(mine[0]), dtype=torch.uint8)
    ends = [Publisher(mine[rank], shared, ranks[rank]) for rank in range(2)]
    for source, value in ((0, 1.0), (1, 7.0)):
        for tensor in mine[source]:
            tensor.fill_(value)
        ends[source].publish(source)
        assert not ranks[0].reached(PUBLISHED, source + 1)
        ends[1 - source].publish(source)
        assert ranks[0].reached(PUBLISHED, source + 1)
        for tensor in mine[1 - source]:
            assert tensor.unique().tolist() == [value]


def test_a_source_that_left_is_named(ranks: list[Rendezvous]):
    end = Publisher([], torch.zeros(0, dtype=torch.uint8), ranks[0])
    ranks[1].leave()
    with pytest.raises(WorkerLostError, match="rank 1 has left"):
        end.publish(1)


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

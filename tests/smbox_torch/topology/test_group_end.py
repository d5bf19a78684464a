"""The end of a worker of a group that averages at a memory node, as the others see it."""

from __future__ import annotations

import uuid

import pytest
import torch

from smbox.errors import StepMismatchError
from smbox_torch.hybrid.hybrid import HybridSGD
from smbox_torch.topology import Link, Links, choose
from smbox_torch.world import World

pytestmark = [pytest.mark.timeout(200), pytest.mark.shares]
NEAR, FAR = Link(1e-4, 2e8, 2e8), Link(1e-4, 1e7, 1e7)


def test_a_worker_of_a_group_with_fewer_batches_is_named_at_once(run_hosts):
    """Worker 1 has ended its loop, and waits for worker 0 to exchange its last step."""
    links = Links(((NEAR, FAR), (NEAR, FAR), (FAR, NEAR)), (0, 1), (0, 1, 2))
    topology, name = choose(links, nbytes=1 << 20, period=2), uuid.uuid4().hex

    def work(world: World, box) -> None:
        options = {"world": world, "timeout_s": 20.0}
        sgd = torch.optim.SGD([torch.nn.Parameter(torch.ones(3))], lr=1.0)
        optimizer = HybridSGD(sgd, box, name, period=2, groups=topology, **options)
        if world.rank < 2:
            optimizer.step()
        if world.rank == 0:
            with pytest.raises(StepMismatchError, match="rank 1 finished after 1 steps"):
                optimizer.step()
            optimizer._exchange.broadcast.receive()  # so that worker 1 need not wait
        optimizer.close(exchange=world.rank == 1)

    run_hosts(3, 1, work)

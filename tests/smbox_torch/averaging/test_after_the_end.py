"""What classes that average gradients refuse after their end."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from smbox.errors import ConfigError
from smbox.testing.model_box import ModelBox
from smbox_torch.averaging.parameter_server import ParameterServer
from smbox_torch.averaging.ring_all_reduce import RingAllReduce
from smbox_torch.averaging.sync_group import SyncGroup
from smbox_torch.hybrid.hybrid import HybridSGD

KINDS = {
    "SyncGroup": lambda sgd, world: SyncGroup(sgd, world=world),
    "RingAllReduce": lambda sgd, world: RingAllReduce(sgd, world=world),
    "ParameterServer": lambda sgd, _: ParameterServer(sgd, ModelBox(), "run", workers=1),
    "HybridSGD": lambda sgd, world: HybridSGD(sgd, ModelBox(), "run", world=world),
}


@pytest.mark.parametrize("end", ["finish", "close"])
@pytest.mark.parametrize("kind", KINDS)
def test_after_the_end_nothing_steps(worlds, kind: str, end: str):
    (world,) = worlds(1, 1)
    x = torch.nn.Parameter(torch.ones(2))
    optimizer = KINDS[kind](torch.optim.SGD([x], lr=0.5), world)
    x.sum().backward()
    optimizer.step()
    state = optimizer.state_dict()
    getattr(optimizer, end)()
    optimizer.close()
    before = x.tolist()
    x.sum().backward()
    load = partial(optimizer.load_state_dict, state)
    calls = [optimizer.step, optimizer.synchronize, optimizer.finish, load]
    for call in [*calls, *([optimizer.exchange] if kind == "HybridSGD" else [])]:
        with pytest.raises(ConfigError, match="the optimizer was closed"):
            call()
    assert x.tolist() == before

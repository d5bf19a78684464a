"""Fabric: its wrapper goes inside; the other way round its imitation would lose state."""

from __future__ import annotations

from collections.abc import Callable

ORDERS = """
import torch
from lightning.fabric import Fabric
from smbox_torch import EASGD

def made():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4))
    return model, torch.optim.SGD(model.parameters(), lr=0.1)

def trained(model, optimizer, name):
    optimizer = EASGD(optimizer, ModelBox(), name, model=model, workers=1)
    for batch in torch.arange(48.0).sin().view(3, 4, 4):
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
    optimizer.eval()
    filled, _ = made()
    optimizer.center_into(filled)
    for ours, theirs in zip(model.parameters(), filled.parameters(), strict=True):
        assert torch.equal(ours, theirs)
    with pytest.raises(ConfigError, match="eval"):
        optimizer.step()
    return [*filled.state_dict().values()]

fabric = Fabric(accelerator="cpu", devices=1)
plain, inside = trained(*made(), "plain"), trained(*fabric.setup(*made()), "inside")
assert all(torch.equal(a, b) for a, b in zip(plain, inside, strict=True))
model, optimizer = made()
with pytest.raises(ConfigError, match=r"that fabric\\.setup returns"):
    fabric.setup(model, EASGD(optimizer, ModelBox(), "outside", workers=1))
"""


def test_its_optimizer_is_wrapped_and_not_the_other_way_round(run: Callable[..., None]):
    run(ORDERS, "lightning")

from __future__ import annotations

import pytest
import torch

from smbox.errors import ConfigError
from smbox_torch.matching import counterparts, in_order, names_of


def two_layers() -> torch.nn.Sequential:
    return torch.nn.Sequential(torch.nn.LayerNorm(4), torch.nn.LayerNorm(4))


def by_kind(model: torch.nn.Module, *, named: bool) -> torch.optim.SGD:
    """Weights and biases in groups of their own, as for weight decay."""
    parameters = list(model.named_parameters() if named else model.parameters())
    return torch.optim.SGD([{"params": parameters[0::2]}, {"params": parameters[1::2]}], lr=0.1)


def members(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    return [p for group in optimizer.param_groups for p in group["params"]]


def test_the_own_model_is_known_in_any_order():
    model = two_layers()
    own = members(by_kind(model, named=False))
    found = counterparts(by_kind(model, named=False), own, {}, model)
    assert all(found[id(parameter)] is parameter for parameter in own)


def test_another_model_is_matched_by_name():
    model, other = two_layers(), two_layers()
    optimizer = by_kind(model, named=False)
    own = members(optimizer)
    found = counterparts(optimizer, own, names_of(optimizer, model), other)
    assert found[id(model[1].weight)] is other[1].weight
    assert found[id(model[0].bias)] is other[0].bias


def test_without_names_several_groups_have_no_order():
    optimizer = by_kind(two_layers(), named=False)
    with pytest.raises(ConfigError, match="several groups"):
        counterparts(optimizer, members(optimizer), {}, two_layers())


def test_one_group_is_matched_in_order_and_by_shape():
    optimizer = torch.optim.SGD(two_layers().parameters(), lr=0.1)
    own, other = members(optimizer), two_layers()
    assert list(counterparts(optimizer, own, {}, other).values()) == list(other.parameters())
    with pytest.raises(ConfigError, match="not the optimizer's"):
        in_order(own, own[:3])

"""Workers that build their optimizers in another order."""

from __future__ import annotations

import pytest
import torch

from smbox.errors import ConfigError
from smbox.testing.model_box import ModelBox
from smbox_torch import EASGD, Hogwild, HybridSGD, SyncGroup


def network() -> torch.nn.Sequential:
    return torch.nn.Sequential(*(torch.nn.Linear(2, 2, bias=False) for _ in range(2)))


def sgd(net: torch.nn.Module, *, is_turned: bool, has_names: bool = False) -> torch.optim.SGD:
    named = list(net.named_parameters())
    named = named[::-1] if is_turned else named
    return torch.optim.SGD(named if has_names else [each for _, each in named], lr=0.1)


@pytest.mark.parametrize("has_names", [False, True])
def test_another_order_is_refused_and_changes_nothing(has_names: bool):
    box, first, second = ModelBox(), network(), network()
    before = second[0].weight.tolist()
    model = {} if has_names else {"model": first}
    EASGD(sgd(first, is_turned=False, has_names=has_names), box, "run", workers=2, **model)
    model = {} if has_names else {"model": second}
    with pytest.raises(ConfigError, match="another order"):
        EASGD(sgd(second, is_turned=True, has_names=has_names), box, "run", workers=2, **model)
    assert second[0].weight.tolist() == before
    EASGD(sgd(second, is_turned=False, has_names=has_names), box, "run", workers=2, **model)
    assert second[0].weight.tolist() == first[0].weight.tolist()


def test_other_names_and_prefixes_of_wrappers_are_no_other_order():
    box, plain = ModelBox(), network()
    EASGD(sgd(plain, is_turned=False), box, "run", workers=3, model=plain)
    within = torch.nn.ModuleDict({"module": network()})
    EASGD(sgd(within, is_turned=False), box, "run", workers=3, model=within)
    with pytest.raises(ConfigError, match="another order"):
        EASGD(sgd(within, is_turned=True), box, "run", workers=3, model=within)
    other = torch.nn.ModuleDict({"net": network()})
    EASGD(sgd(other, is_turned=True), box, "run", workers=3, model=other)


def test_hogwild_refuses_it_too(open_box):
    first, second = network(), network()
    with (
        Hogwild(sgd(first, is_turned=False), open_box(), "run", model=first),
        pytest.raises(ConfigError, match="another order"),
    ):
        Hogwild(sgd(second, is_turned=True), open_box(), "run", model=second)


@pytest.mark.parametrize("has_names", [False, True])
@pytest.mark.parametrize("kind", [EASGD, Hogwild, HybridSGD, SyncGroup])
def test_a_state_of_another_order_is_refused_and_changes_nothing(
    kind: type, has_names: bool, open_box, worlds
):
    def wrapped(net: torch.nn.Module, name: str, *, is_turned: bool):
        model = {} if has_names else {"model": net}
        world = {"world": worlds(1, 1)[0]} if kind in {HybridSGD, SyncGroup} else {}
        more = {"workers": 1} if kind is EASGD else world
        args = () if kind is SyncGroup else (open_box(), name)
        return kind(sgd(net, is_turned=is_turned, has_names=has_names), *args, **model, **more)

    saved, own = network(), network()
    with wrapped(saved, "saved", is_turned=False) as first:
        state = first.state_dict()
    with wrapped(own, "turned", is_turned=True) as turned:
        before = own[0].weight.tolist()
        with pytest.raises(ConfigError, match="another order"):
            turned.load_state_dict(state)
        assert own[0].weight.tolist() == before
    with wrapped(own, "same", is_turned=False) as same:
        same.load_state_dict(state)
    assert own[0].weight.tolist() == saved[0].weight.tolist()

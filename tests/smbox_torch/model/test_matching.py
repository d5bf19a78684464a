from __future__ import annotations

import pytest
import torch

from smbox.errors import ConfigError
from smbox_torch.model.matching import counterparts, in_order, names_of, namesakes


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
    found = counterparts(own, {}, dict(model.named_parameters()), groups=2)
    assert all(found[id(parameter)] is parameter for parameter in own)
    some = counterparts(own[:3], {}, dict(model.named_parameters()), groups=2)
    assert list(some.values()) == own[:3]


def test_another_model_is_matched_by_name():
    model, other = two_layers(), two_layers()
    optimizer = by_kind(model, named=False)
    theirs = dict(other.named_parameters())
    found = counterparts(members(optimizer), names_of(optimizer, model), theirs, groups=2)
    assert found[id(model[1].weight)] is other[1].weight
    assert found[id(model[0].bias)] is other[0].bias


def test_a_model_with_some_of_the_names_is_not_matched_by_order():
    model = torch.nn.ModuleDict({"a": torch.nn.Linear(2, 2), "b": torch.nn.Linear(2, 2)})
    other = torch.nn.ModuleDict({"b": torch.nn.Linear(2, 2), "c": torch.nn.Linear(2, 2)})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    own, names = members(optimizer), names_of(optimizer, model)
    with pytest.raises(ConfigError, match="lacks others") as refused:
        counterparts(own, names, dict(other.named_parameters()))
    assert refused.value.facts["missing"] == ["a.weight", "a.bias"]
    renamed = torch.nn.ModuleDict({"d": torch.nn.Linear(2, 2), "e": torch.nn.Linear(2, 2)})
    found = counterparts(own, names, dict(renamed.named_parameters()))
    assert found[id(model["a"].weight)] is renamed["d"].weight


def test_without_names_several_groups_have_no_order():
    own, theirs = members(by_kind(two_layers(), named=False)), two_layers()
    with pytest.raises(ConfigError, match="several groups"):
        counterparts(own, {}, dict(theirs.named_parameters()), groups=2)


def test_one_group_is_matched_in_order_and_by_shape():
    own, other = list(two_layers().parameters()), two_layers()
    found = counterparts(own, {}, dict(other.named_parameters()))
    assert list(found.values()) == list(other.parameters())
    with pytest.raises(ConfigError, match="do not match"):
        in_order(own, own[:3])


def test_buffers_have_names_too():
    model, other = torch.nn.BatchNorm1d(3), torch.nn.BatchNorm1d(3)
    other.register_buffer("mask", torch.full((3,), -torch.inf))
    names = names_of(torch.optim.SGD(model.parameters(), lr=0.1), model)
    found = counterparts([model.running_var], names, dict(other.named_buffers()))
    assert found[id(model.running_var)] is other.running_var


@pytest.mark.parametrize("ours", ["", "module.", "_forward_module.", "module._orig_mod."])
@pytest.mark.parametrize("theirs", ["", "module.", "_orig_mod.", "_orig_mod.module."])
def test_wrappers_of_models_do_not_matter(ours: str, theirs: str):
    own = [torch.zeros(2), torch.ones(2)]
    names = {id(own[0]): (f"{ours}a.weight",), id(own[1]): (f"{ours}b.weight",)}
    other = {f"{theirs}b.weight": torch.zeros(2), f"{theirs}a.weight": torch.ones(2)}
    found = counterparts(own, names, other, groups=2)
    assert found[id(own[0])] is other[f"{theirs}a.weight"]
    assert found[id(own[1])] is other[f"{theirs}b.weight"]


def test_a_layer_that_is_called_module_is_no_wrapper_where_that_would_confuse():
    own = [torch.zeros(2), torch.ones(2)]
    names = {id(own[0]): ("weight",), id(own[1]): ("module.weight",)}
    other = {"module.weight": torch.zeros(2), "weight": torch.ones(2)}
    assert counterparts(own, names, other, groups=2)[id(own[0])] is other["weight"]
    wrapped = {f"_orig_mod.{name}": tensor for name, tensor in other.items()}
    with pytest.raises(ConfigError, match="several groups"):
        counterparts(own, names, wrapped, groups=2)
    with pytest.raises(ConfigError, match="do not match"):  # not both with the only one
        counterparts(own, names, {"_orig_mod.weight": torch.zeros(2)})


def test_where_a_name_is_unknown_one_group_is_matched_in_order():
    own = [torch.zeros(2), torch.ones(2)]
    other = {"b": torch.zeros(2), "a": torch.ones(2)}
    found = counterparts(own, {id(own[0]): ("a",)}, other)
    assert [found[id(each)] for each in own] == list(other.values())


@pytest.mark.parametrize(
    ("ours", "theirs"), [("a", "module.a"), ("module.a", "a"), ("_orig_mod.a", "module.a")]
)
def test_namesakes_have_one_name_without_wrappers_and_one_shape(ours: str, theirs: str):
    own, target, others = torch.ones(2), torch.zeros(2), {"b": torch.zeros(2)}
    names = {id(own): (ours,)}
    ((to, source),) = namesakes([own], names, {theirs: target} | others)
    assert (to is target, source is own) == (True, True)
    assert namesakes([own], names, {theirs: torch.zeros(1)} | others) == []
    assert namesakes([own], names, {theirs: target, f"module.{theirs}": target}) == []
    assert namesakes([own], {}, {theirs: target}) == []


def tied(*, is_tied: bool) -> torch.nn.ModuleDict:
    model = torch.nn.ModuleDict({"e": torch.nn.Embedding(4, 3), "h": torch.nn.Linear(3, 4)})
    if is_tied:
        model["h"].weight = model["e"].weight
    return model


@pytest.mark.parametrize("wrap", [lambda model: model, torch.nn.DataParallel])
@pytest.mark.parametrize("wrap_own", [lambda model: model, torch.nn.DataParallel])
def test_a_tied_parameter_is_not_matched_with_one_of_two(wrap_own, wrap):
    model = wrap_own(tied(is_tied=True))
    own, names = list(model.parameters()), names_of(torch.optim.SGD(model.parameters()), model)
    with pytest.raises(ConfigError, match="tie them") as refused:
        counterparts(own, names, dict(wrap(tied(is_tied=False)).named_parameters()))
    (untied,) = refused.value.facts["untied"]
    assert untied.removeprefix("module.") == "h.weight"
    same = wrap(tied(is_tied=True))
    found = counterparts(own, names, dict(same.named_parameters()))
    assert list(found.values()) == list(same.parameters())


def test_a_module_that_is_held_twice_is_no_second_tensor():
    layer = torch.nn.Linear(2, 2)
    model = torch.nn.ModuleDict({"a": layer, "module": torch.nn.ModuleDict({"a": layer})})
    names = names_of(torch.optim.SGD(model.parameters()), model)
    assert names[id(layer.bias)] == ("a.bias", "module.a.bias")
    theirs = {"a.weight": torch.zeros(2, 2), "a.bias": torch.zeros(2)}
    found = counterparts(list(model.parameters()), names, theirs)
    assert found[id(layer.bias)] is theirs["a.bias"]

from __future__ import annotations

import collections
import copy
import gc
import pickle
import uuid

import pytest
import torch

from smbox.errors import ConfigError
from smbox.testing.model_box import ModelBox
from smbox_torch import EASGD, SyncGroup
from smbox_torch.optimizer.wrapped import WrappedOptimizer
from smbox_torch.world import World


class Twice(WrappedOptimizer):
    """Steps twice, and notes its end."""

    is_closed = False

    def _advance(self) -> None:
        self.inner.step()
        self.inner.step()

    def close(self) -> None:
        self.is_closed = True


@pytest.fixture
def weight() -> torch.nn.Parameter:
    return torch.nn.Parameter(torch.ones(2))


def test_groups_and_state_are_those_inside_for_schedulers_too(weight: torch.nn.Parameter):
    optimizer = Twice(torch.optim.SGD([weight], lr=1.0, momentum=0.5))
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
    assert optimizer.step(lambda: weight.sum().backward() or 7.0) == 7.0
    scheduler.step()
    assert optimizer.inner.param_groups[0]["lr"] == 0.5
    assert weight.tolist() == [1 - 1 - 1.5] * 2
    assert optimizer.state[weight] is optimizer.inner.state[weight]
    optimizer.zero_grad()
    assert weight.grad is None


def test_gradients_are_cleared_in_place_on_request(weight: torch.nn.Parameter):
    sgd = torch.optim.SGD([weight], lr=1.0)
    for optimizer in (Twice(sgd), EASGD(sgd, ModelBox(), "run", workers=1)):
        weight.sum().backward()
        optimizer.zero_grad(set_to_none=False)
        assert weight.grad.tolist() == [0.0, 0.0]
        optimizer.zero_grad()
        assert weight.grad is None


def test_a_closure_has_gradients_also_inside_no_grad(weight: torch.nn.Parameter):
    optimizer = Twice(torch.optim.SGD([weight], lr=1.0))
    with torch.no_grad():
        optimizer.step(lambda: weight.sum().backward())
    assert weight.tolist() == [-1.0, -1.0]


def test_a_scheduler_from_before_the_wrapping_goes_on(weight: torch.nn.Parameter):
    inner = torch.optim.SGD([weight], lr=1.0)
    scheduler = torch.optim.lr_scheduler.StepLR(inner, step_size=1, gamma=0.5)
    optimizer = Twice(inner)
    weight.sum().backward()
    optimizer.step()
    scheduler.step()  # warns unless it has seen a step
    optimizer.load_state_dict(optimizer.state_dict())
    optimizer.step()
    scheduler.step()
    assert optimizer.param_groups[0]["lr"] == 0.25


def test_modes_of_a_worker_with_the_model_that_is_evaluated_change_nothing(
    weight: torch.nn.Parameter,
):
    optimizer = Twice(torch.optim.SGD([weight], lr=1.0))
    weight.sum().backward()
    optimizer.eval()
    optimizer.step()
    optimizer.train()
    assert weight.tolist() == [-1.0, -1.0]
    assert optimizer.rank == 0


def test_a_state_that_is_assigned_is_that_of_the_inner_optimizer(weight: torch.nn.Parameter):
    optimizer = Twice(torch.optim.SGD([weight], lr=1.0, momentum=0.5))
    optimizer.step(lambda: weight.sum().backward())
    optimizer.state = collections.defaultdict(dict)  # momentum begins anew
    assert optimizer.inner.state is optimizer.state
    with pytest.raises(AttributeError, match="param_groups"):
        optimizer.param_groups = []


def test_a_loaded_state_is_seen_by_both(weight: torch.nn.Parameter):
    optimizer = Twice(torch.optim.SGD([weight], lr=1.0, momentum=0.5))
    weight.sum().backward()
    optimizer.step()
    saved = optimizer.state_dict()
    other = Twice(torch.optim.SGD([weight], lr=0.1))
    other.load_state_dict(saved)
    assert other.param_groups is other.inner.param_groups
    assert other.inner.param_groups[0]["lr"] == 1.0
    assert other.state[weight]["momentum_buffer"].tolist() == [1.5, 1.5]


def test_a_state_that_the_inner_optimizer_loads_by_itself_is_seen_by_both(
    weight: torch.nn.Parameter,
):
    inner = torch.optim.SGD([weight], lr=1.0)
    optimizer = Twice(inner)
    inner.load_state_dict(torch.optim.SGD([weight], lr=0.25).state_dict())
    assert optimizer.param_groups is inner.param_groups
    assert optimizer.state is inner.state
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
    weight.sum().backward()
    optimizer.step()
    scheduler.step()
    assert inner.param_groups[0]["lr"] == 0.125
    inner.add_param_group({"params": [torch.nn.Parameter(torch.ones(1))]})
    with pytest.raises(ConfigError, match="first, then wrap"):
        optimizer.step()


def test_an_inner_optimizer_that_calls_no_hooks_stays_with_its_wrapper():
    weight = torch.nn.Parameter(torch.ones(2, 3))

    class Own(torch.optim.SGD):
        def load_state_dict(self, state_dict):
            groups = [{**self.param_groups[0], "lr": state_dict["param_groups"][0]["lr"]}]
            state = {weight: {"momentum_buffer": torch.ones(3, 2).t()}}
            self.__setstate__({"state": state, "param_groups": groups})

    optimizer = Twice(Own([weight], lr=1.0, momentum=0.5))
    optimizer.step(lambda: weight.sum().backward())
    optimizer.load_state_dict(torch.optim.SGD([weight], lr=0.25).state_dict())
    assert optimizer.param_groups is optimizer.inner.param_groups
    assert optimizer.param_groups[0]["lr"] == 0.25
    optimizer.step()
    assert optimizer.state[weight]["momentum_buffer"].stride() == weight.stride()


def test_a_wrapper_that_is_gone_does_not_follow(weight: torch.nn.Parameter):
    inner = torch.optim.SGD([weight], lr=1.0)
    Twice(inner)
    gc.collect()
    inner.load_state_dict(inner.state_dict())
    assert not inner._optimizer_load_state_dict_post_hooks


def test_an_optimizer_that_could_not_be_wrapped_stays_as_it_was():
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(2))], lr=0.1)
    with pytest.raises(ConfigError) as kept:  # its traceback keeps what was begun
        SyncGroup(optimizer, bucket_nbytes=0, world=World(run_id=uuid.uuid4().hex))
    frozen = torch.optim.SGD([torch.ones(2)], lr=0.1)
    with pytest.raises(ConfigError) as kept_too:
        SyncGroup(frozen, world=World(run_id=uuid.uuid4().hex))
    for each in (optimizer, frozen):
        each.load_state_dict(each.state_dict())
    assert kept
    assert kept_too


def test_groups_are_fixed_and_the_end_is_called(weight: torch.nn.Parameter):
    with Twice(torch.optim.SGD([weight], lr=1.0)) as optimizer:
        with pytest.raises(ConfigError, match="groups"):
            optimizer.add_param_group({"params": []})
        assert not optimizer.is_closed
    assert optimizer.is_closed


def test_parameters_that_only_the_optimizer_inside_was_given_are_refused(
    weight: torch.nn.Parameter,
):
    """Else they would step at each worker for itself, and nobody would notice."""
    inner = torch.optim.SGD([weight], lr=1.0)
    optimizer = Twice(inner)
    late = torch.nn.Parameter(torch.ones(1))
    inner.add_param_group({"params": [late]})
    (weight.sum() + late.sum()).backward()
    with pytest.raises(ConfigError, match="first, then wrap"):
        optimizer.step()
    inner.param_groups[:] = [{**inner.param_groups[0], "params": [late]}]  # as many as before
    with pytest.raises(ConfigError, match="first, then wrap"):
        optimizer.step()
    assert (weight.tolist(), late.tolist()) == ([1.0, 1.0], [1.0])


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, pickle.dumps])
def test_it_is_neither_copied_nor_pickled(weight: torch.nn.Parameter, duplicate):
    optimizer = Twice(torch.optim.SGD([weight], lr=1.0))
    with pytest.raises(ConfigError, match=r"state_dict\(\)"):
        duplicate(optimizer)


def test_an_optimizer_that_needs_a_closure_is_refused(weight: torch.nn.Parameter):
    with pytest.raises(ConfigError, match="LBFGS"):
        Twice(torch.optim.LBFGS([weight]))
    inner = torch.optim.SGD([weight], lr=1.0)
    torch.optim.lr_scheduler.StepLR(inner, step_size=1)  # puts a step of its own in its place
    assert Twice(inner).inner is inner


def test_a_wrapper_is_not_wrapped_again(weight: torch.nn.Parameter):
    optimizer = Twice(torch.optim.SGD([weight], lr=1.0))
    with pytest.raises(ConfigError, match=r"is a wrapper.*\.inner"):
        Twice(optimizer)
    assert Twice(optimizer.inner).inner is optimizer.inner


def test_a_state_of_another_class_of_optimizer_changes_nothing(weight: torch.nn.Parameter):
    other = torch.optim.SGD([weight], lr=0.5, momentum=0.5)
    weight.grad = torch.ones(2)
    other.step()
    optimizer = Twice(torch.optim.Adam([weight], lr=0.1))
    optimizer.step()
    with pytest.raises(ConfigError, match="another class of optimizer"):
        optimizer.load_state_dict(other.state_dict())
    assert optimizer.param_groups is optimizer.inner.param_groups
    assert optimizer.state is optimizer.inner.state
    assert optimizer.inner.param_groups[0]["lr"] == 0.1
    optimizer.step()


def test_a_step_in_a_compiled_function_is_not_compiled(weight: torch.nn.Parameter, open_box):
    with EASGD(torch.optim.SGD([weight], lr=1.0), open_box(), "run", workers=1) as optimizer:
        weight.sum().backward()
        torch.compile(optimizer.step, backend="eager")()
        assert weight.tolist() == [0.0, 0.0]

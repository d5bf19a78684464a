"""The state of another model is refused, and nothing has changed then."""

from __future__ import annotations

import copy
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import smbox
from smbox.errors import ConfigError
from smbox_torch import (
    EAMSGD,
    EASGD,
    SSP,
    Downpour,
    HybridSGD,
    MDownpour,
    ParameterServer,
    ServerDownpour,
)
from smbox_torch.world import World

pytestmark = pytest.mark.shares

BOXED = [EASGD, EAMSGD, Downpour, SSP, MDownpour, ServerDownpour, ParameterServer]
NEEDS_RANK = {SSP, ParameterServer}


def wide() -> torch.nn.Module:
    return torch.nn.Linear(3, 4)


def with_buffers() -> torch.nn.Module:
    return torch.nn.Sequential(wide(), torch.nn.BatchNorm1d(4))


def with_positions(length: int) -> torch.nn.Module:
    model = wide()
    model.register_buffer("positions", torch.arange(length))
    return model


OTHERS: dict[str, Callable[[], torch.nn.Module]] = {
    "other shapes, as many elements": lambda: torch.nn.ParameterList(
        [torch.zeros(3, 4), torch.zeros(4)]
    ),
    "other sizes": lambda: torch.nn.Linear(3, 5),
    "one element": lambda: torch.nn.Linear(1, 1, bias=False),
    "other dtype": lambda: wide().double(),
    "more parameters": with_buffers,
}


@pytest.fixture(scope="module")
def box() -> Iterator[smbox.Box]:
    with smbox.local(memory="128MiB") as made:
        yield made


def wrapped(kind: type, box: smbox.Box, model: torch.nn.Module, *, names: bool = False) -> Any:
    sgd, run = torch.optim.SGD(model.parameters(), lr=0.1), uuid.uuid4().hex
    options: dict[str, Any] = {"model": model} if names or kind is ParameterServer else {}
    if kind is HybridSGD:
        return HybridSGD(sgd, box, run, world=World(run_id=run), **options)
    if kind in NEEDS_RANK:
        options["rank"] = 0
    return kind(sgd, box, run, workers=1, **options)


def state_of(kind: type, box: smbox.Box, model: torch.nn.Module, **options: Any) -> Any:
    with wrapped(kind, box, model, **options) as other:
        other.param_groups[0]["lr"] = 9.0
        for each in model.parameters():
            each.grad = torch.ones_like(each)
        other.step()
        return other.state_dict()


@pytest.mark.parametrize("kind", [*BOXED, HybridSGD])
@pytest.mark.parametrize("other", OTHERS)
def test_a_state_of_another_model_is_refused(kind: type, other: str, box: smbox.Box):
    state = state_of(kind, box, OTHERS[other]())
    model = wide()
    before = copy.deepcopy(model.state_dict())
    with wrapped(kind, box, model) as mine:
        with pytest.raises(ConfigError, match="another model"):
            mine.load_state_dict(state)
        assert (mine.steps, mine.param_groups[0]["lr"]) == (0, 0.1)
        for name, value in model.state_dict().items():
            assert torch.equal(value, before[name])


@pytest.mark.parametrize("kind", [EASGD, Downpour, HybridSGD])
@pytest.mark.parametrize("names", [False, True])
def test_a_state_is_loaded_with_model_as_it_was_saved(
    kind: type, box: smbox.Box, *, names: bool
):
    state = state_of(kind, box, with_buffers(), names=names)
    with wrapped(kind, box, with_buffers(), names=not names) as mine:
        with pytest.raises(ConfigError, match="model="):
            mine.load_state_dict(state)
        assert mine.steps == 0
    with wrapped(kind, box, with_buffers(), names=names) as mine:
        mine.load_state_dict(state)
        assert mine.steps == 1


@pytest.mark.parametrize("kind", [EASGD, HybridSGD])
@pytest.mark.parametrize("length", [1, 3])
def test_a_state_with_other_integer_buffers_is_refused(kind: type, length: int, box: smbox.Box):
    state = state_of(kind, box, with_positions(length), names=True)
    model = with_positions(2)
    before = copy.deepcopy(model.state_dict())
    with wrapped(kind, box, model, names=True) as mine:
        with pytest.raises(ConfigError, match="another model"):
            mine.load_state_dict(state)
        assert (mine.steps, mine.param_groups[0]["lr"]) == (0, 0.1)
        for name, value in model.state_dict().items():
            assert torch.equal(value, before[name])

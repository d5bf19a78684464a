"""A publisher of a small state, a tensor without memory of its own, and a box with a hook."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_map_only

from smbox import Box
from smbox_torch import Publisher

State = dict[str, torch.Tensor]


@pytest.fixture
def state(request: pytest.FixtureRequest) -> State:
    """Two tensors of ``SIZE`` zeros, a constant of the test's file, and a number."""
    size = request.module.SIZE
    return {"a": torch.zeros(size), "b": torch.zeros(size), "n": torch.tensor(0)}


@pytest.fixture
def publisher(box: Box, name: str, state: State) -> Iterator[Publisher]:
    """A publisher of ``state``."""
    with Publisher(box, name, state) as made:
        yield made


@pytest.fixture
def publish() -> Callable[[Publisher, State, float], int]:
    """``publish(publisher, state, value)``: fill the state with a value and publish it."""

    def fill_and_publish(publisher: Publisher, state: State, value: float) -> int:
        for tensor in state.values():
            tensor.fill_(value)
        return publisher.publish()

    return fill_and_publish


@pytest.fixture
def values() -> Callable[[State], list[list[float]]]:
    """``values(state)``: the different values of each tensor."""
    return lambda state: [tensor.unique().tolist() for tensor in state.values()]


class Wrapped(torch.Tensor):
    """Made of other tensors, as DTensor and the weights of quantization libraries are."""

    @staticmethod
    def __new__(cls, inner: torch.Tensor):
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)

    def __init__(self, inner: torch.Tensor) -> None:
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, function, _, args=(), kwargs=None):
        if function is torch.ops.aten.detach.default:
            return cls(args[0].inner)
        inner = tree_map_only(cls, lambda tensor: tensor.inner, args)
        return function(*inner, **(kwargs or {}))


@pytest.fixture
def wrapped() -> Callable[[torch.Tensor], torch.Tensor]:
    """``wrapped(tensor)``: a tensor of a subclass, with the same values."""
    return Wrapped


Hook = Callable[[str, Any], Callable[..., Any] | None]


class HookedBox:
    """A box that calls ``before(verb, region)`` before each put, put_nb and get_nb of a buffer.

    Buffers are regions of a publication. A function that it returns is called instead.
    """

    def __init__(self, box: Any, before: Hook) -> None:
        self._box, self._before = box, before

    __class__ = Box  # for smbox.join

    def __getattr__(self, name: str) -> Any:
        return getattr(self._box, name)

    def create(self, *args: Any, **more: Any) -> Any:
        return self._hooked(self._box.create(*args, **more))

    def attach(self, *args: Any, **more: Any) -> Any:
        return self._hooked(self._box.attach(*args, **more))

    def _hooked(self, region: Any) -> Any:
        return _HookedRegion(region, self._before) if ".buffer-" in region.name else region


class _HookedRegion:
    def __init__(self, region: Any, before: Hook) -> None:
        self._region = region
        self._before = before

    def __getitem__(self, part: slice) -> Any:
        return _HookedRegion(self._region[part], self._before)

    def __getattr__(self, name: str) -> Any:
        is_hooked = name in {"put", "put_nb", "get_nb"}
        instead = self._before(name, self._region) if is_hooked else None
        return instead or getattr(self._region, name)


@pytest.fixture
def hooked() -> type[HookedBox]:
    """``hooked(box, before)``: a box that calls ``before`` first."""
    return HookedBox

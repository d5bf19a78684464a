"""The format of a wrapper's state, and checks of the algorithm of a state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, TypedDict

import torch

from smbox.errors import ConfigError
from smbox_torch.workers.claim import is_other_order

__all__ = ["checkpoint", "demand_algorithm", "is_plain", "load_inner"]


KEYS_SHOWN: Final = 8
"""Keys of an unknown dict that an error lists."""


class State(TypedDict):
    """The state of a wrapper; all algorithms have the same keys.

    Attributes:
        algorithm: name of the class; only this class can load the state.
        rank: rank of the worker.
        steps: number of steps of the worker.
        shared: number of those steps that the other workers have; by default, all.
        inner: state of the inner optimizer.
        parameters: the worker's values, in the form that its class restores.
        buffers: the model's floating-point buffers, in the same form.
        counts: the model's other buffers, such as batch counts.
        centers: values of the shared state.
        extra: the algorithm's own state as tensors and numbers.
        origin: identity of the wrapper, by which it recognizes its own state.
        shapes: of the parameters, where ``parameters`` has them as flat arrays.
        order: names of the parameters and their order, see ``order_of``; None: unknown.
    """

    algorithm: str
    rank: int
    steps: int
    shared: int
    inner: dict[str, Any]
    parameters: Any
    buffers: Any
    counts: list[torch.Tensor]
    centers: list[Any]
    extra: dict[str, Any]
    origin: str | None
    shapes: list[tuple[int, ...]]
    order: str | None


def checkpoint(
    algorithm: str,
    *,
    rank: int,
    steps: int,
    shared: int | None = None,
    inner: dict[str, Any],
    parameters: Any,
    buffers: Any,
    counts: Sequence[torch.Tensor] = (),
    centers: Sequence[Any] = (),
    extra: Mapping[str, Any] | None = None,
    origin: str | None = None,
    shapes: Sequence[tuple[int, ...]] = (),
    order: str | None = None,
) -> dict[str, Any]:
    """Return the state of a wrapper, see State; fields without a value are empty."""
    state = State(
        algorithm=algorithm,
        rank=rank,
        steps=steps,
        shared=steps if shared is None else shared,
        inner=inner,
        parameters=parameters,
        buffers=buffers,
        counts=list(counts),
        centers=list(centers),
        extra=dict(extra or {}),
        origin=origin,
        shapes=list(shapes),
        order=order,
    )
    return dict(state)


def is_plain(state_dict: Mapping[str, Any]) -> bool:
    """Return whether a state is that of a plain ``torch.optim`` optimizer."""
    return {"state", "param_groups"} <= state_dict.keys()


def load_inner(optimizer: torch.optim.Optimizer, state_dict: dict[str, Any]) -> None:
    """Load the state of a plain torch optimizer; ConfigError, unchanged, if it does not fit."""
    before = optimizer.state, optimizer.param_groups
    try:
        optimizer.load_state_dict(state_dict)
    except (ValueError, KeyError) as error:
        optimizer.state, optimizer.param_groups = before
        raise ConfigError(
            "this state belongs to another class of optimizer or to other groups: build the"
            f" model, optimizer and groups as they were when it was saved ({error})",
            optimizer=type(optimizer).__name__,
        ) from error


def demand_algorithm(state_dict: Mapping[str, Any], algorithm: str, order: str | None) -> None:
    """Raise ConfigError unless a state is complete, of this algorithm, and of this order."""
    found = state_dict.get("algorithm")
    if found is None:
        raise ConfigError(
            "this is not the state of an optimizer: pass what its state_dict() returned, not an"
            " entire checkpoint file or a model's state",
            keys=sorted(map(str, state_dict))[:KEYS_SHOWN],
        )
    if found != algorithm:
        raise ConfigError(
            "this state belongs to another algorithm: load it there, or load only the state of"
            " its inner optimizer, load_state_dict(state['inner'])",
            algorithm=found,
        )
    missing = sorted(State.__required_keys__ - state_dict.keys())
    if missing:
        raise ConfigError(
            "this state is incomplete, or of an earlier version of smbox: save all keys",
            missing=missing,
        )
    if is_other_order(state_dict["order"], order):
        raise ConfigError(
            "this state has the parameters in another order: build the optimizer's groups in"
            " the order of model.parameters(), as when it was saved, not of a set"
        )

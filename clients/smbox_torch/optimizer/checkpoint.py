"""What every wrapper saves: the keys of its state, and whose state one is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

import torch

from smbox.errors import ConfigError

__all__ = ["checkpoint", "demand_algorithm", "is_plain"]


class State(TypedDict):
    """The state of a wrapper; all algorithms have the same keys.

    Attributes:
        algorithm: name of the class; no other takes the state back.
        rank: of the worker.
        steps: that it has done.
        inner: state of the optimizer inside.
        parameters: the worker's values, in the form that its class restores.
        buffers: the model's floating-point buffers, likewise.
        counts: its whole-number buffers.
        centers: values of what the workers share.
        extra: the algorithm's own state as tensors and numbers.
        origin: of the wrapper, so that it knows a state of its own.
    """

    algorithm: str
    rank: int
    steps: int
    inner: dict[str, Any]
    parameters: Any
    buffers: Any
    counts: list[torch.Tensor]
    centers: list[Any]
    extra: dict[str, Any]
    origin: str | None


def checkpoint(
    algorithm: str,
    *,
    rank: int,
    steps: int,
    inner: dict[str, Any],
    parameters: Any,
    buffers: Any,
    counts: Sequence[torch.Tensor] = (),
    centers: Sequence[Any] = (),
    extra: Mapping[str, Any] | None = None,
    origin: str | None = None,
) -> dict[str, Any]:
    """Return the state of a wrapper, see State; what an algorithm does not have is empty."""
    state = State(
        algorithm=algorithm,
        rank=rank,
        steps=steps,
        inner=inner,
        parameters=parameters,
        buffers=buffers,
        counts=list(counts),
        centers=list(centers),
        extra=dict(extra or {}),
        origin=origin,
    )
    return dict(state)


def is_plain(state_dict: Mapping[str, Any]) -> bool:
    """Tell whether a state is that of a ``torch.optim`` optimizer."""
    return {"state", "param_groups"} <= state_dict.keys()


def demand_algorithm(state_dict: Mapping[str, Any], algorithm: str) -> None:
    """Raise ConfigError unless a state is of this algorithm, and whole."""
    found = state_dict.get("algorithm")
    if found != algorithm:
        raise ConfigError(
            "this state belongs to another algorithm: load it there, or only what its optimizer"
            " inside had, load_state_dict(state['inner'])",
            algorithm=found,
        )
    missing = sorted(State.__required_keys__ - state_dict.keys())
    if missing:
        raise ConfigError("this state lacks keys: save it whole", missing=missing)

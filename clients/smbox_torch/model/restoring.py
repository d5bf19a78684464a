"""Restoring a worker's own values from a checkpoint."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from smbox.errors import ConfigError
from smbox_torch.model.flat import FlatParameters

__all__ = ["check_same_model", "pairs_of", "restore"]


def check_same_model(
    state_dict: dict[str, Any],
    parameters: FlatParameters,
    statistics: FlatParameters | None,
    other_buffers: Sequence[torch.Tensor],
) -> None:
    """Check that a checkpoint can be restored into a model.

    Raises:
        ConfigError: it belongs to another model, or was saved with another ``model=``.
    """
    if [tuple(shape) for shape in state_dict["shapes"]] != parameters.shapes:
        raise ConfigError(
            "this state belongs to another model: its parameters have other shapes",
            saved=state_dict["shapes"],
            own=parameters.shapes,
        )
    saved = [
        _sizes(state_dict["parameters"]),
        _sizes(state_dict["buffers"]),
        _shapes(state_dict["counts"]),
    ]
    own = [
        parameters.sizes,
        {} if statistics is None else statistics.sizes,
        _shapes(other_buffers),
    ]
    if saved != own:
        raise ConfigError(
            "this state belongs to another model: dtypes or buffers differ; pass model= as it"
            " was passed when the state was saved",
            saved=saved,
            own=own,
        )


def _sizes(values: dict[str, torch.Tensor]) -> dict[str, int]:
    return {dtype: tensor.numel() for dtype, tensor in values.items()}


def _shapes(tensors: Sequence[torch.Tensor]) -> list[tuple[int, ...]]:
    return [tuple(tensor.shape) for tensor in tensors]


def restore(
    state_dict: dict[str, Any],
    parameters: FlatParameters,
    statistics: FlatParameters | None,
    other_buffers: Sequence[torch.Tensor],
) -> None:
    """Set a model's parameters and buffers to those of a checkpoint."""
    parameters.set(state_dict["parameters"])
    if statistics is not None:
        statistics.set(state_dict["buffers"])
    for buffer, saved in zip(other_buffers, state_dict["counts"], strict=True):
        buffer.copy_(saved)


def pairs_of(
    own: Sequence[torch.Tensor], saved: Sequence[torch.Tensor]
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return pairs of a model's tensors and their saved values.

    Raises:
        ConfigError: the saved tensors have other shapes, or are buffers of another ``model=``.
    """
    if _shapes(own) != _shapes(saved):
        raise ConfigError(
            "this state belongs to another model: shapes or buffers differ; pass model= as it"
            " was passed when the state was saved",
            saved=_shapes(saved),
            own=_shapes(own),
        )
    return list(zip(own, saved, strict=True))

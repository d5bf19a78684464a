"""Detection of tensors that are no longer where the constructor of a wrapper placed them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch

from smbox.errors import ConfigError

__all__ = ["Place", "check_places", "places_of"]

Place = tuple[int, torch.dtype]
"""Where a tensor lies: its address, and its dtype."""


def places_of(views: Iterable[torch.Tensor]) -> list[Place]:
    """Return the places of tensors.

    Sharing a tensor (``share_memory``, queues of ``torch.multiprocessing``) moves the storage
    under all tensors that have it, so a view says nothing about its own former place.
    """
    return [(view.data_ptr(), view.dtype) for view in views]


def check_places(tensors: Sequence[torch.Tensor], places: Sequence[Place], home: str) -> None:
    """Raise ConfigError if a tensor is not in ``home`` any more, where it was placed."""
    for tensor, place in zip(tensors, places, strict=True):
        if (tensor.data_ptr(), tensor.dtype) != place:
            raise ConfigError(
                f"a tensor of the model is not in {home} any more: change values in place"
                " (p.data.clamp_(), not p.data = ...); move, convert, load and share_memory()"
                " the model before the optimizer is wrapped; wrap each parameter with one"
                " optimizer, and pass model= to one optimizer of a model; send clones through"
                " queues of torch.multiprocessing",
                shape=tuple(tensor.shape),
            )

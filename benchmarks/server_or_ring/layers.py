"""The layers of a model of torchvision: parameters and share of the computation. No weights."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.utils.flop_counter import FlopCounterMode

from smbox_torch.planning import models


@dataclass(frozen=True, slots=True)
class Layer:
    """A layer with parameters.

    Attributes:
        sizes: elements of each of its parameters.
        share: of the model's floating-point operations, and so of its computing time.
    """

    sizes: tuple[int, ...]
    share: float


def layers_of(name: str) -> list[Layer]:
    """Return the layers of a model in the order of the forward pass."""
    model = models.make(name, "meta").eval()
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(torch.empty(1, *models.IMAGE, device="meta"))
    counts = counter.get_flop_counts()
    root = type(model).__name__
    found = [
        (
            tuple(each.numel() for each in module.parameters(recurse=False)),
            sum(counts.get(f"{root}.{path}", {}).values()),
        )
        for path, module in model.named_modules()
        if any(True for _ in module.parameters(recurse=False))
    ]
    total = sum(flops for _, flops in found)
    return [Layer(sizes, flops / total) for sizes, flops in found]


def even(elements: int, count: int = 4) -> list[Layer]:
    """Return equal layers of so many elements together, for a short run."""
    return [Layer((elements // count,), 1 / count) for _ in range(count)]

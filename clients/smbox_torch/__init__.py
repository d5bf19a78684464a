"""PyTorch on smbox: published algorithms of distributed training as optimizer wrappers."""

from __future__ import annotations

from smbox_torch.adapter import register
from smbox_torch.easgd import EASGD
from smbox_torch.elastic import StabilityWarning
from smbox_torch.flat import FlatParameters
from smbox_torch.stats import Stats
from smbox_torch.wrapper import BoxOptimizer

__all__ = [
    "EASGD",
    "BoxOptimizer",
    "FlatParameters",
    "StabilityWarning",
    "Stats",
]

register()

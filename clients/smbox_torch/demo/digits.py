"""Scikit-learn's handwritten digits and a small convolutional network that classifies them.

1797 pictures of 8 x 8 pixels in ten classes. Scikit-learn contains them, so nothing is
downloaded. N = number of pictures of a set.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

import torch
from torch import nn

from smbox.errors import ConfigError

__all__ = ["Digits", "accuracy", "batches", "load", "network"]

HELD_OUT = 360
"""Number of held-out pictures, not used in training."""


@dataclass(frozen=True)
class Digits:
    """Pictures and their labels.

    Attributes:
        x: ``f32[N, 1, 8, 8]``, pixels from 0 to 1.
        y: ``i64[N]``, the digits.
    """

    x: torch.Tensor
    y: torch.Tensor

    def __len__(self) -> int:
        return len(self.y)

    def shard(self, rank: int, world_size: int) -> Self:
        """Return every world_size-th picture, starting at rank; the shards are disjoint."""
        return type(self)(self.x[rank::world_size], self.y[rank::world_size])


def load(*, seed: int = 0) -> tuple[Digits, Digits]:
    """Return training and held-out pictures, the same split for the same seed.

    Raises:
        ConfigError: scikit-learn is missing.
    """
    try:
        from sklearn.datasets import load_digits  # noqa: PLC0415 - an extra, and slow to import
    except ImportError as error:
        raise ConfigError("the digits need scikit-learn: pip install 'smbox[demo]'") from error

    raw = load_digits()
    x = torch.tensor(raw.images, dtype=torch.float32)[:, None] / 16.0
    y = torch.tensor(raw.target, dtype=torch.int64)
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(seed))
    x, y = x[order], y[order]
    return Digits(x[HELD_OUT:], y[HELD_OUT:]), Digits(x[:HELD_OUT], y[:HELD_OUT])


def network(*, seed: int = 0) -> nn.Sequential:
    """Return two convolutions, a batch norm and a linear layer; the seed sets their values."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1),
            nn.BatchNorm2d(16),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(32 * 4 * 4, 10),
        )


def batches(
    data: Digits, size: int, steps: int, *, seed: int
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield ``steps`` batches; every picture is used once before any is used again."""
    generator = torch.Generator().manual_seed(seed)
    order = torch.empty(0, dtype=torch.int64)
    for _ in range(steps):
        while len(order) < size:
            order = torch.cat([order, torch.randperm(len(data), generator=generator)])
        chosen, order = order[:size], order[size:]
        yield data.x[chosen], data.y[chosen]


@torch.no_grad()
def accuracy(model: nn.Module, data: Digits) -> float:
    """Return the share of correctly classified pictures; set the model to training mode."""
    model.eval()
    right = model(data.x).argmax(dim=1) == data.y
    model.train()
    return float(right.float().mean())

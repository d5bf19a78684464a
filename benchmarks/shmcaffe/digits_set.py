"""Scikit-learn's digits in the form of the pictures of the convergence runs.

Each of the 8 x 8 pixels becomes a square of 4 x 4, in three equal colors, so that the network
of three convolutions reads them as it reads CIFAR-10.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import numpy as np
import task
from numpy.typing import NDArray

from smbox_torch.demo import digits

SCALE: Final = 4
COLORS: Final = 3
WHITE: Final = 255


def decode(cache: Path) -> None:
    """Write the pictures into ``cache``, unless they are there."""
    if not task.is_decoded(cache):
        train, test = digits.load()
        sets = {"train": train, "test": test}
        task.keep({part: (_pictures(s), s.y.numpy()) for part, s in sets.items()}, cache)


def _pictures(some: digits.Digits) -> NDArray[np.uint8]:
    """Return ``u8[N, 32, 32, 3]``."""
    pixels = (some.x[:, 0].numpy() * WHITE).round().astype(np.uint8)
    large = pixels.repeat(SCALE, axis=1).repeat(SCALE, axis=2)
    return np.repeat(large[..., None], COLORS, axis=3)

"""BoxOptions: the keyword arguments that all optimizers with a center accept."""

from __future__ import annotations

from typing import TypedDict

import torch

from smbox_torch.workers.joining import Workers

__all__ = ["BoxOptions"]


class BoxOptions(TypedDict, total=False):
    """Keyword arguments of :class:`smbox_torch.BoxOptimizer`, which documents them.

    Every algorithm accepts them besides its own arguments and passes them on unchanged.
    """

    model: torch.nn.Module | None
    workers: Workers
    rank: int | None
    lease_s: float
    center_dtype: str
    wire: str | None

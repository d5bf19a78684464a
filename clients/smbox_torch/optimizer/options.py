"""What every optimizer with a center may be told, whatever its algorithm; defined once."""

from __future__ import annotations

from typing import TypedDict

import torch

from smbox_torch.workers.joining import Workers

__all__ = ["BoxOptions"]


class BoxOptions(TypedDict, total=False):
    """Keyword arguments of :class:`smbox_torch.BoxOptimizer`, which documents them.

    Every algorithm takes them beside its own arguments and hands them on as they are.
    """

    model: torch.nn.Module | None
    workers: Workers
    lease_s: float
    center_dtype: str
    wire: str | None

"""A checksum of a model's values, which detects any change."""

from __future__ import annotations

import zlib
from collections.abc import Iterable

import torch

from smbox_torch.adapter import bytes_of

__all__ = ["digest"]


def digest(tensors: Iterable[torch.Tensor]) -> int:
    """Return a checksum of the tensors' bytes, in order; one pass over them."""
    found = 0
    for tensor in tensors:
        found = zlib.crc32(bytes_of(tensor).numpy().data, found)
    return found

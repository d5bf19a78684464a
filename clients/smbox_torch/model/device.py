"""Tensors on a device such as a GPU: host memory for fast copies, and waits for its work."""

from __future__ import annotations

import torch

__all__ = ["await_device", "host_like"]


def host_like(tensor: torch.Tensor) -> torch.Tensor:
    """Return an uninitialized host tensor like ``tensor``, page-locked if that is on a GPU."""
    is_pinned = tensor.device.type == "cuda"
    return torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu", pin_memory=is_pinned)


def await_device(tensor: torch.Tensor) -> None:
    """Wait until a tensor has the values that were queued for it; at once on the CPU.

    A copy to the host waits for them, too. A measurement of the copy, or of anything after it,
    would count this time.
    """
    if not tensor.is_cpu:
        tensor.reshape(-1)[:1].cpu()

"""Conversion of torch tensors to arrays, so that all operations of smbox accept tensors.

Importing smbox_torch registers :func:`as_array`, so ``region.put(tensor)`` works for CPU
tensors of any dtype that a region can have. Transfers bypass autograd: for a tensor that
requires gradients, only its data is read and written.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from smbox.array import register_adapter
from smbox.errors import ConfigError

__all__ = ["as_array", "bytes_of", "dtype_name", "register", "saved"]


def dtype_name(dtype: torch.dtype) -> str:
    """Return smbox's name of a torch dtype, e.g. ``"float32"``."""
    return str(dtype).removeprefix("torch.")


def as_array(tensor: torch.Tensor) -> NDArray[Any]:
    """View a tensor's memory as a numpy array; nothing is copied.

    Args:
        tensor: any dtype of smbox, on the CPU, C-contiguous or not.

    Returns:
        Array of the tensor's shape and dtype on the same memory (bfloat16 as ml_dtypes').

    Raises:
        TypeError: the tensor is on another device, sparse, or has no array of its memory, such
            as a lazily negated or conjugated view.
        ConfigError: bfloat16 without ml_dtypes.
    """
    data = tensor.detach()
    if data.device.type != "cpu" or data.layout is not torch.strided:
        raise TypeError(
            f"only dense CPU tensors can be shared with a region, not {data.layout} on "
            f"{data.device}: use tensor.cpu(), and tensor.to_dense() if it is sparse"
        )
    try:
        return _bfloat16(data) if data.dtype is torch.bfloat16 else data.numpy()
    except RuntimeError as error:  # such as a negated, conjugate or nested tensor
        raise TypeError(f"this tensor has no array of its memory: {error}") from error


def _bfloat16(data: torch.Tensor) -> NDArray[Any]:
    """View bfloat16, which numpy lacks, through 16-bit integers."""
    try:
        import ml_dtypes  # noqa: PLC0415 - an extra, needed by bfloat16 alone
    except ImportError as missing:
        raise ConfigError("bfloat16 needs ml_dtypes: pip install 'smbox[bf16]'") from missing
    bits: NDArray[np.int16] = data.view(torch.int16).numpy()
    return bits.view(ml_dtypes.bfloat16)


def bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    """Return the elements as ``u8[n]`` on the CPU; nothing is copied if they are contiguous."""
    data = tensor.detach().cpu().contiguous()
    flat = data.as_strided((data.numel(),), (1,))  # a single element may have another stride
    return flat.view(torch.uint8)


def saved(array: NDArray[Any]) -> torch.Tensor:
    """Return a copy of an array as bytes, which torch can save for every dtype."""
    return torch.from_numpy(array.view(np.uint8).copy())


def register() -> None:
    """Make smbox accept torch tensors as arrays. Idempotent."""
    register_adapter(torch.Tensor, as_array)

"""Parameters of a model as views of one flat buffer, so that an exchange is one transfer.

One buffer per dtype: parameters of a dtype lie in it one after another, in the order of the
optimizer's groups, contiguous in C order whatever their strides were before. On a device
other than the CPU a pinned host twin stands between the buffer and the memory box:
:meth:`FlatBuffer.load` brings the device's values to it, :meth:`FlatBuffer.store` back.

P = number of elements of one dtype.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

import torch
from numpy.typing import NDArray

from smbox.errors import ConfigError
from smbox_torch.adapter import as_array, dtype_name

__all__ = [
    "FlatBuffer",
    "FlatParameters",
    "check_views",
    "float_buffers",
    "named_counts",
    "named_floats",
    "other_buffers",
    "unique",
]

INTEGERS: Final = {torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64}


def unique(tensors: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    """Return the tensors in order, tied ones once."""
    return list({id(tensor): tensor for tensor in tensors}.values())


def named_floats(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Return a model's floating-point buffers by name."""
    return {n: b for n, b in model.named_buffers() if b.is_floating_point() and b.numel()}


def named_counts(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Return a model's integer buffers by name: batch norms count their batches in them."""
    return {name: b for name, b in model.named_buffers() if b.dtype in INTEGERS and b.numel()}


def float_buffers(model: torch.nn.Module) -> list[torch.Tensor]:
    """Return a model's floating-point buffers that have means: statistics of batch norms.

    Those that hold infinities as the model is wrapped, as masks do, have none: they are each
    worker's own. They have to be the same ones on all workers.
    """
    return unique(b for b in named_floats(model).values() if not b.isinf().any())


def other_buffers(model: torch.nn.Module) -> list[torch.Tensor]:
    """Return a model's other buffers: batch norms count their batches in integers."""
    averaged = {id(buffer) for buffer in float_buffers(model)}
    return unique(b for b in model.buffers() if id(b) not in averaged)


def check_views(
    tensors: Sequence[torch.Tensor], views: Sequence[torch.Tensor], home: str
) -> None:
    """Raise ConfigError if a tensor is no longer the view of ``home`` that it was made."""
    for tensor, view in zip(tensors, views, strict=True):
        if tensor.data_ptr() != view.data_ptr() or tensor.dtype != view.dtype:
            raise ConfigError(
                f"a parameter left {home}: move, convert and load the model before the "
                "optimizer is wrapped",
                shape=tuple(tensor.shape),
            )


class FlatBuffer:
    """Tensors of one dtype as views of ``flat``, a tensor of shape ``[P]``.

    Attributes:
        dtype: smbox's name of the dtype.
        tensors: the tensors that are views, in the order of their elements.
        flat: ``[P]`` on the tensors' device.
        host: ``[P]`` array: the memory of ``flat`` itself on the CPU, else its pinned twin.
    """

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        first = tensors[0]
        self.dtype = dtype_name(first.dtype)
        self.tensors = tuple(tensors)
        size = sum(tensor.numel() for tensor in tensors)
        self.flat = torch.empty(size, dtype=first.dtype, device=first.device)
        self._views = self.split(self.flat)
        with torch.no_grad():
            for tensor, view in zip(self.tensors, self._views, strict=True):
                view.copy_(tensor)
                tensor.data = view
        self._gradient: torch.Tensor | None = None
        self._twin = self.flat if first.device.type == "cpu" else _pinned(self.flat)
        self.host: NDArray[Any] = as_array(self._twin)
        self.load()

    @property
    def size(self) -> int:
        """Number of elements, P."""
        return self.flat.numel()

    @property
    def gradient(self) -> torch.Tensor | None:
        """Gradients as ``[P]``, or None where they were not attached."""
        return self._gradient

    def split(self, flat: torch.Tensor) -> list[torch.Tensor]:
        """View a ``[P]`` tensor as one tensor per member, in the members' shapes."""
        views, first = [], 0
        for tensor in self.tensors:
            limit = first + tensor.numel()
            views.append(flat[first:limit].view(tensor.shape))
            first = limit
        return views

    def attach_gradients(self) -> None:
        """Make every member's ``grad`` a view of one buffer; existing gradients are kept.

        A sparse gradient becomes dense, and later sparse ones are added to that.
        A frozen member without a gradient stays without: with a zero one an optimizer would
        decay it. Its part of the buffer is zero.
        """
        if self._gradient is None:
            self._gradient = torch.zeros_like(self.flat)
        for tensor, view in zip(self.tensors, self.split(self._gradient), strict=True):
            if tensor.grad is None:
                view.zero_()
                if not tensor.requires_grad:
                    continue
            elif tensor.grad.is_sparse:
                view.copy_(tensor.grad.to_dense())
            elif tensor.grad.data_ptr() != view.data_ptr():
                view.copy_(tensor.grad)
            tensor.grad = view

    def zero_gradients(self) -> None:
        """Set all gradients to zero in place; they stay views of the buffer, frozen ones go."""
        if self._gradient is not None:
            self._gradient.zero_()
            for tensor, view in zip(self.tensors, self.split(self._gradient), strict=True):
                tensor.grad = view if tensor.requires_grad else None

    def load(self) -> NDArray[Any]:
        """Bring the device's values to ``host`` and return it; on the CPU they are one."""
        if self._twin is not self.flat:
            self._twin.copy_(self.flat)
        return self.host

    def store(self) -> None:
        """Bring ``host`` to the device; on the CPU they are one."""
        if self._twin is not self.flat:
            self.flat.copy_(self._twin)

    def check(self) -> None:
        """Raise ConfigError if a member was given other memory since (``model.to(...)``)."""
        check_views(self.tensors, self._views, "the flat buffer")


class FlatParameters:
    """All tensors of a model (or of an optimizer), one :class:`FlatBuffer` per dtype.

    Args:
        tensors: parameters or buffers; tied ones are counted once; they become views.
        gradients: also keep gradients flat; ``zero_grad`` must then keep them in place.

    Attributes:
        tensors: all of them, in the order they were given.
        buffers: one per dtype.

    Raises:
        ConfigError: no tensors, or tensors on several devices; nothing was changed.
    """

    def __init__(self, tensors: Iterable[torch.Tensor], *, gradients: bool = False) -> None:
        members = unique(tensors)
        if len({tensor.device for tensor in members}) != 1:
            devices = sorted({str(tensor.device) for tensor in members})
            raise ConfigError("flat buffers need tensors on one device", devices=devices)
        self.tensors = tuple(members)
        by_dtype: dict[torch.dtype, list[torch.Tensor]] = {}
        for tensor in members:
            by_dtype.setdefault(tensor.dtype, []).append(tensor)
        self.buffers = tuple(FlatBuffer(group) for group in by_dtype.values())
        if gradients:
            self.attach_gradients()

    @property
    def nbytes(self) -> int:
        """Bytes of all values."""
        return sum(buffer.host.nbytes for buffer in self.buffers)

    def attach_gradients(self) -> None:
        """Make all gradients views of flat buffers."""
        for buffer in self.buffers:
            buffer.attach_gradients()

    def zero_gradients(self) -> None:
        """Set all gradients to zero where they are."""
        for buffer in self.buffers:
            buffer.zero_gradients()

    def values(self) -> dict[str, torch.Tensor]:
        """Return a copy of all values: dtype -> ``[P]`` on the CPU."""
        return {b.dtype: b.flat.detach().cpu().clone() for b in self.buffers}

    def set(self, values: dict[str, torch.Tensor]) -> None:
        """Overwrite all values by what :meth:`values` returned."""
        for buffer in self.buffers:
            buffer.flat.detach().copy_(values[buffer.dtype])

    def check(self) -> None:
        """Raise ConfigError if a tensor is no longer a view of its buffer."""
        for buffer in self.buffers:
            buffer.check()


def _pinned(flat: torch.Tensor) -> torch.Tensor:
    """Return a host twin of a device's buffer, page-locked so that copies run at full speed."""
    pinned = flat.device.type == "cuda"
    return torch.empty(flat.shape, dtype=flat.dtype, device="cpu", pin_memory=pinned)

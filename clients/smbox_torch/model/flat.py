"""Parameters of a model as views of one flat buffer, so that an exchange is one transfer.

One buffer per dtype: parameters of a dtype lie in it one after another, in the order of the
optimizer's groups, contiguous in C order whatever their strides were before. Where the center
has a wider dtype, a ``Master`` holds the parameters in that. On a device other than the CPU a
pinned host twin stands between the buffer and the memory box: :meth:`FlatBuffer.load` brings
the device's values to it, :meth:`FlatBuffer.store` back.

P = number of elements of one dtype.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

import torch
from numpy.typing import NDArray
from torch.utils.dlpack import from_dlpack

from smbox.errors import ConfigError
from smbox_torch.adapter import as_array, dtype_name
from smbox_torch.model.master import Master
from smbox_torch.model.precision import FLOATS, Precision

__all__ = [
    "FlatBuffer",
    "FlatParameters",
    "check_views",
    "checked",
    "float_buffers",
    "named_counts",
    "named_floats",
    "other_buffers",
    "own_storage",
    "unique",
]

INTEGERS: Final = (torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8)


def unique(tensors: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    """Return the tensors in order, tied ones once."""
    return list({id(tensor): tensor for tensor in tensors}.values())


def named_floats(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Return a model's floating-point buffers by name."""
    return {n: b for n, b in model.named_buffers() if b.is_floating_point() and b.numel()}


def named_counts(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Return a model's integer buffers by name: batch norms count their batches there."""
    return {n: b for n, b in model.named_buffers() if b.dtype in INTEGERS and b.numel()}


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


def checked(
    tensors: Iterable[torch.Tensor], precision: Precision | None = None
) -> tuple[torch.Tensor, ...]:
    """Return the tensors in order, tied ones once, if flat buffers can be made of them.

    Raises:
        ConfigError: none, several devices, a dtype that is no float, or one for which the
            precision makes no sense.
    """
    members = tuple(unique(tensors))
    if not members:
        raise ConfigError("the optimizer has no parameters: build it from the model's")
    devices = sorted({str(tensor.device) for tensor in members})
    if len(devices) != 1 or devices == ["meta"]:
        raise ConfigError(
            "flat buffers need tensors on one device, with values: move the entire model there "
            "(a model on 'meta' has none), or wrap one optimizer per device",
            devices=devices,
        )
    strange = sorted({str(t.dtype) for t in members if t.dtype not in FLOATS.values()})
    if strange:
        raise ConfigError(
            f"parameters are of {', '.join(FLOATS)}: leave others out of the optimizer "
            "(complex ones as torch.view_as_real)",
            dtypes=strange,
        )
    if precision is not None:
        for tensor in members:
            precision.wire_of(tensor.dtype)
    return members


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


def own_storage(view: torch.Tensor) -> torch.Tensor:
    """Return the same memory as a tensor with a storage of its own, exactly as large.

    safetensors takes tensors of one storage for tied ones and leaves all but one out of a file,
    and torch.save writes the entire storage of a tensor that views a part.
    """
    return from_dlpack(view)


class FlatBuffer:
    """Tensors of one dtype as views of ``flat``, a tensor of shape ``[P]``.

    Args:
        tensors: they become views.
        precision: of the center that they are exchanged with; None: their own.

    Attributes:
        dtype: smbox's name of the tensors' dtype.
        wire: dtype in which they are sent.
        tensors: the tensors that are views, in the order of their elements.
        flat: ``[P]`` on the tensors' device.
        master: the values of ``flat`` in the center's dtype.
        host: ``[P]`` array of the center's dtype: the memory of ``wide`` itself on the CPU,
            else its pinned twin.
    """

    def __init__(
        self, tensors: Sequence[torch.Tensor], precision: Precision | None = None
    ) -> None:
        first = tensors[0]
        self.dtype = dtype_name(first.dtype)
        self.wire = first.dtype if precision is None else precision.wire_of(first.dtype)
        wide = first.dtype if precision is None else precision.center_of(first.dtype)
        self.tensors = tuple(tensors)
        size = sum(tensor.numel() for tensor in tensors)
        self.flat = torch.empty(size, dtype=first.dtype, device=first.device)
        self._views = [own_storage(view) for view in self.split(self.flat)]
        with torch.no_grad():
            for tensor, view in zip(self.tensors, self._views, strict=True):
                view.copy_(tensor)
                tensor.data = view
        self._gradient: torch.Tensor | None = None
        self.master = Master(self.flat, wide)
        self._twin = self.wide if first.device.type == "cpu" else _pinned(self.wide)
        self.host: NDArray[Any] = as_array(self._twin)
        self.load()

    @property
    def size(self) -> int:
        """Number of elements, P."""
        return self.flat.numel()

    @property
    def wide(self) -> torch.Tensor:
        """The master's values, ``[P]`` on the tensors' device; ``flat`` if dtypes are equal."""
        return self.master.wide

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
        """Bring the tensors' values to ``host`` and return it."""
        self.master.widen()
        if self._twin is not self.wide:
            self._twin.copy_(self.wide)
        return self.host

    def store(self) -> None:
        """Bring ``host`` to the tensors."""
        if self._twin is not self.wide:
            self.wide.copy_(self._twin)
        self.master.narrow()

    def check(self) -> None:
        """Raise ConfigError if a member was given other memory since (``model.to(...)``)."""
        check_views(self.tensors, self._views, "the flat buffer")


class FlatParameters:
    """All tensors of a model (or of an optimizer), one :class:`FlatBuffer` per dtype.

    Args:
        tensors: parameters or buffers; tied ones are counted once; they become views.
        gradients: also keep gradients flat; ``zero_grad`` must then keep them in place.
        precision: of the center that they are exchanged with; None: their own.

    Attributes:
        tensors: all of them, in the order they were given.
        buffers: one per dtype.

    Raises:
        ConfigError: no tensors, tensors on several devices, of a dtype that is no float, or for
            which the precision makes no sense; nothing was changed.
    """

    def __init__(
        self,
        tensors: Iterable[torch.Tensor],
        *,
        gradients: bool = False,
        precision: Precision | None = None,
    ) -> None:
        self.tensors = checked(tensors, precision)
        by_dtype: dict[torch.dtype, list[torch.Tensor]] = {}
        for tensor in self.tensors:
            by_dtype.setdefault(tensor.dtype, []).append(tensor)
        self.buffers = tuple(FlatBuffer(group, precision) for group in by_dtype.values())
        if gradients:
            self.attach_gradients()

    @property
    def nbytes(self) -> int:
        """Bytes of all values in the center's dtypes."""
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
        return {b.dtype: b.master.values().detach().cpu().clone() for b in self.buffers}

    def set(self, values: dict[str, torch.Tensor]) -> None:
        """Overwrite all values by what :meth:`values` returned."""
        for buffer in self.buffers:
            buffer.wide.detach().copy_(values[buffer.dtype])
            buffer.master.narrow()

    def check(self) -> None:
        """Raise ConfigError if a tensor is no longer a view of its buffer."""
        for buffer in self.buffers:
            buffer.check()


def _pinned(flat: torch.Tensor) -> torch.Tensor:
    """Return a host twin of a device's buffer, page-locked so that copies run at full speed."""
    pinned = flat.device.type == "cuda"
    return torch.empty(flat.shape, dtype=flat.dtype, device="cpu", pin_memory=pinned)

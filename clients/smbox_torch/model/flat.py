"""Parameters of a model as views of one flat buffer, so that an exchange is one transfer.

There is one buffer per dtype. It holds the parameters in the order of the optimizer's groups,
contiguous in C order, regardless of their previous strides. If the center has a wider dtype, a
``Master`` holds the parameters in that dtype. On a device other than the CPU, exchanges use a
pinned copy in host memory: :meth:`FlatBuffer.load` copies from the device to it, and
:meth:`FlatBuffer.store` copies back.

P = number of elements of one dtype.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from numpy.typing import NDArray
from torch.utils.dlpack import from_dlpack

from smbox.errors import ConfigError
from smbox_torch.adapter import as_array, dtype_name
from smbox_torch.model.device import host_like
from smbox_torch.model.master import Master
from smbox_torch.model.places import check_places, places_of
from smbox_torch.model.precision import FLOATS, Precision

__all__ = [
    "FlatBuffer",
    "FlatParameters",
    "checked",
    "own_storage",
    "unique",
]


def unique(tensors: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    """Return the tensors in order, tied ones once."""
    return list({id(tensor): tensor for tensor in tensors}.values())


def checked(
    tensors: Iterable[torch.Tensor], precision: Precision | None = None
) -> tuple[torch.Tensor, ...]:
    """Return the tensors in order, tied ones once, after checking that they can be flattened.

    Raises:
        ConfigError: there are no tensors, they are on several devices, or a dtype is not a
            float or does not fit the precision.
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
            f"parameters must have a dtype of {', '.join(FLOATS)}: leave others out of the"
            " optimizer (make a complex one a real Parameter of two columns, and call"
            " torch.view_as_complex in forward)",
            dtypes=strange,
        )
    if precision is not None:
        for tensor in members:
            precision.wire_of(tensor.dtype)
    return members


def own_storage(view: torch.Tensor) -> torch.Tensor:
    """Return the same memory as a tensor with a separate storage of exactly its size.

    safetensors treats tensors of one storage as tied and saves only one of them, and torch.save
    writes the entire storage of a tensor that views a part.
    """
    return from_dlpack(view)


class FlatBuffer:
    """Tensors of one dtype as views of ``flat``, a tensor of shape ``[P]``.

    Args:
        tensors: tensors that become views.
        precision: precision of their center; None: the tensors' dtype.

    Attributes:
        dtype: smbox's name of the tensors' dtype.
        wire: dtype in which they are sent.
        tensors: the tensors that are views, in the order of their elements.
        flat: ``[P]`` on the tensors' device.
        gradient: gradients as ``[P]`` on that device; None until they are attached.
        master: the values of ``flat`` in the center's dtype.
        host: ``[P]`` array of the center's dtype: the memory of ``wide`` itself on the CPU,
            else its pinned copy in host memory.
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
        views = [own_storage(view) for view in self.split(self.flat)]
        self._places = places_of(views)
        with torch.no_grad():
            for tensor, view in zip(self.tensors, views, strict=True):
                view.copy_(tensor)
                tensor.data = view
        self.gradient: torch.Tensor | None = None
        self.master = Master(self.flat, wide)
        self._twin = self.wide if first.device.type == "cpu" else host_like(self.wide)
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

    def split(self, flat: torch.Tensor) -> list[torch.Tensor]:
        """View a ``[P]`` tensor as one tensor per member, in the members' shapes."""
        views, first = [], 0
        for tensor in self.tensors:
            limit = first + tensor.numel()
            views.append(flat[first:limit].view(tensor.shape))
            first = limit
        return views

    @torch.no_grad()
    def attach_gradients(self) -> None:
        """Make every member's ``grad`` a view of one buffer; existing gradients are kept.

        A sparse gradient becomes dense; later sparse gradients are added to it. A member
        without a gradient gets none, because an optimizer would decay a member with a zero
        gradient. Its part of the buffer is zero.
        """
        if self.gradient is None:
            self.gradient = torch.zeros_like(self.flat)
        for tensor, view in zip(self.tensors, self.split(self.gradient), strict=True):
            if tensor.grad is None:
                view.zero_()
                continue
            if tensor.grad.is_sparse:
                view.copy_(tensor.grad.to_dense())
            elif tensor.grad.data_ptr() != view.data_ptr():
                view.copy_(tensor.grad)
            tensor.grad = view

    def zero_gradients(self) -> None:
        """Set gradients to zero in place, those of frozen members to None; see ``check``."""
        self.check()  # torch rejects a gradient of another dtype than the member's
        if self.gradient is not None:
            self.gradient.zero_()
            for tensor, view in zip(self.tensors, self.split(self.gradient), strict=True):
                tensor.grad = view if tensor.requires_grad else None

    def load(self) -> NDArray[Any]:
        """Copy the tensors' values to ``host`` and return it."""
        self.master.widen()
        if self._twin is not self.wide:
            self._twin.copy_(self.wide)
        return self.host

    def store(self) -> None:
        """Copy ``host`` to the tensors."""
        if self._twin is not self.wide:
            self.wide.copy_(self._twin)
        self.master.narrow()

    def check(self) -> None:
        """Raise ConfigError if a member has other memory now (``model.to(...)``)."""
        check_places(self.tensors, self._places, "the flat buffer")


class FlatParameters:
    """All tensors of a model (or of an optimizer), one :class:`FlatBuffer` per dtype.

    Args:
        tensors: parameters or buffers, which become views; tied ones are used once.
        gradients: also make the gradients views of flat buffers.
        precision: precision of their center; None: the tensors' dtypes.

    Attributes:
        tensors: all tensors, in the order of the argument.
        buffers: one buffer per dtype.

    Raises:
        ConfigError: there are no tensors, they are on several devices, or a dtype is not a
            float or does not fit the precision; nothing was changed.
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

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        """Shapes of all tensors."""
        return [tuple(tensor.shape) for tensor in self.tensors]

    @property
    def sizes(self) -> dict[str, int]:
        """Number of elements of each dtype."""
        return {buffer.dtype: buffer.size for buffer in self.buffers}

    def attach_gradients(self) -> None:
        """Make all gradients views of flat buffers."""
        for buffer in self.buffers:
            buffer.attach_gradients()

    def values(self) -> dict[str, torch.Tensor]:
        """Return a copy of all values: dtype -> ``[P]`` on the CPU."""
        return {b.dtype: b.master.values().detach().cpu().clone() for b in self.buffers}

    def set(self, values: dict[str, torch.Tensor]) -> None:
        """Overwrite all values with what :meth:`values` returned."""
        for buffer in self.buffers:
            buffer.wide.detach().copy_(values[buffer.dtype])
            buffer.master.narrow()

    def check(self) -> None:
        """Raise ConfigError if a tensor is not a view of its buffer any more."""
        for buffer in self.buffers:
            buffer.check()

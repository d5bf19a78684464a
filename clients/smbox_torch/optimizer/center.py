"""The center: regions of a memory box with the values that the workers share.

There is one region per dtype of the worker's values, ``NAME.DTYPE``. Its elements have the
center's dtype (``precision``). It is initialized once, by the first worker that creates it; all
workers start with these values.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Protocol

import numpy as np
import torch

from smbox.memory.layout import STRIPE_NBYTES
from smbox_torch.adapter import as_array, dtype_name
from smbox_torch.boxes import Array, BoxLike, RegionLike
from smbox_torch.model.buffers import float_buffers
from smbox_torch.model.flat import FlatBuffer, FlatParameters
from smbox_torch.model.precision import Precision, Sender

__all__ = ["Center", "Shared", "center_of_buffers", "statistics_of"]


class Shared(Protocol):
    """Shared state that a checkpoint contains."""

    def values(self) -> dict[str, torch.Tensor]:
        """Return a copy of the state."""

    def put(self, values: dict[str, torch.Tensor]) -> None:
        """Overwrite the state with what :meth:`values` returned."""


class Center:
    """The flat buffers of a worker and their regions.

    Args:
        box: the memory.
        name: prefix of the regions.
        flat: the worker's values, which define the layout. They initialize new regions; the
            values of existing regions overwrite them.
        init: initialize with this number instead of the worker's values.
        loads: False leaves the worker's values unchanged, for velocities and averages that are
            kept beside a center.

    Attributes:
        regions: one per buffer.
        senders: one per buffer; each makes the operands for its region.

    Raises:
        LayoutMismatchError: regions of this name belong to another model.
    """

    def __init__(
        self,
        box: BoxLike,
        name: str,
        flat: FlatParameters,
        *,
        init: float | None = None,
        loads: bool = True,
    ) -> None:
        self.name = name
        self.flat = flat
        self.regions: tuple[RegionLike, ...] = tuple(
            box.create(
                f"{name}.{buffer.dtype}",
                shape=buffer.host.shape,
                dtype=dtype_name(buffer.wide.dtype),
                init=buffer.load() if init is None else init,
                exist_ok=True,
            )
            for buffer in flat.buffers
        )
        self.senders = tuple(Sender(b.size, b.wide.dtype, b.wire) for b in flat.buffers)
        for buffer, region in self if loads else ():
            region.get(out=buffer.host)
            buffer.store()
        self._seen = self._version()

    def __iter__(self) -> Iterator[tuple[FlatBuffer, RegionLike]]:
        """Iterate over the pairs of buffer and region."""
        return iter(zip(self.flat.buffers, self.regions, strict=True))

    @property
    def nbytes(self) -> int:
        """Bytes of the center."""
        return self.flat.nbytes

    @property
    def sent_nbytes(self) -> int:
        """Bytes of one operand for each region, in the wire's dtype."""
        return sum(sender.nbytes for sender in self.senders)

    def read(self, out: Iterable[Array]) -> None:
        """Read the center in the wire's dtype into one ``[P]`` of its own dtype per buffer."""
        for region, sender, each in zip(self.regions, self.senders, out, strict=True):
            sender.fetch(region, each)

    def take(self) -> None:
        """Overwrite the worker's values with the center's, exactly, regardless of the wire."""
        self.flat.set(self.values())

    def elastic(self, moving_rate: float) -> None:
        """Move the worker's values and the center towards each other by the same bits."""
        for (buffer, region), sender in zip(self, self.senders, strict=True):
            x = buffer.load()
            if sender.is_exact:
                region.elastic(x, moving_rate)
            else:
                with sender.sending(x) as sent:
                    d = region.elastic(sent, moving_rate, delta=np.empty_like(x))
                x -= d
            buffer.store()

    def operands(self, values: Iterable[Array]) -> list[Array]:
        """Return one ``[P]`` per buffer in the wire's dtype; see :meth:`Sender.operand`."""
        return [s.operand(each) for s, each in zip(self.senders, values, strict=True)]

    def values(self) -> dict[str, torch.Tensor]:
        """Return a copy of the center: dtype of the worker's values -> ``[P]`` on the CPU."""
        copies = {}
        for buffer, region in self:
            copies[buffer.dtype] = torch.empty_like(buffer.wide, device="cpu")
            region.get(out=as_array(copies[buffer.dtype]))
        return copies

    def tensors(self) -> list[torch.Tensor]:
        """Return the same copy as one tensor for each of ``flat.tensors``, in their order."""
        found: dict[int, torch.Tensor] = {}
        for (buffer, _), values in zip(self, self.values().values(), strict=True):
            found.update(zip(map(id, buffer.tensors), buffer.split(values), strict=True))
        return [found[id(tensor)] for tensor in self.flat.tensors]

    def put(self, values: dict[str, torch.Tensor]) -> None:
        """Overwrite the center with what :meth:`values` returned, on any device."""
        for buffer, region in self:
            region.put(as_array(values[buffer.dtype].to("cpu", buffer.wide.dtype)))
        self._seen = self._version()

    def behind(self, *, mine: int = 1) -> int:
        """Return the changes by other workers since the last call.

        Args:
            mine: number of this worker's own changes since then, which are not counted.
        """
        version, seen = self._version(), self._seen
        self._seen = version
        return round((version - seen) / self._stripes()) - mine

    def note_own(self) -> None:
        """Exclude a further change by this worker from what :meth:`behind` returns next."""
        self._seen += self._stripes()

    def _stripes(self) -> int:
        return max(1, -(-self.regions[0].nbytes // STRIPE_NBYTES))

    def _version(self) -> int:
        return self.regions[0].version


def center_of_buffers(
    box: BoxLike, name: str, model: torch.nn.Module | None, precision: Precision
) -> Center | None:
    """Create the center ``NAME.buffers`` of a model's floating-point buffers; None without any.

    They are sent exactly: the rounding error of a large variance could make a small one
    negative.
    """
    tensors = float_buffers(model) if model is not None else []
    if not tensors:
        return None
    flat = FlatParameters(tensors, precision=replace(precision, is_exact=True))
    return Center(box, f"{name}.buffers", flat)


def statistics_of(model: torch.nn.Module | None) -> dict[str, object]:
    """Return the number of floating-point buffers that are exchanged, as a setting of a run."""
    return {"statistics": 0 if model is None else len(float_buffers(model))}

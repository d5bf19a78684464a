"""The center: regions of a memory box that hold what the workers share.

One region per dtype, ``NAME.DTYPE``, initialised once: of workers that race to create it one
wins, and all begin with the winner's values. A counter ``NAME.phase`` tells whether anybody
has worked with it yet, so that a checkpoint is restored into fresh memory only.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from smbox.memory.layout import STRIPE_NBYTES
from smbox_torch.adapter import as_array
from smbox_torch.boxes import BoxLike, RegionLike
from smbox_torch.flat import FlatBuffer, FlatParameters

__all__ = ["Center"]

FRESH, RESTORING, IN_USE = 0, 1, 2
RESTORE_TIMEOUT_S = 120.0
"""Longest wait for another worker that writes a checkpoint into the center."""


class Center:
    """Flat buffers of a worker and the regions they are exchanged with.

    Args:
        box: the memory.
        name: prefix of the regions.
        flat: the worker's values; they become the center's if it is new, and are
            overwritten by the center's values if it is not.
    """

    def __init__(self, box: BoxLike, name: str, flat: FlatParameters) -> None:
        self.name = name
        self.flat = flat
        self.regions: tuple[RegionLike, ...] = tuple(
            box.create(
                f"{name}.{buffer.dtype}",
                shape=buffer.host.shape,
                dtype=buffer.dtype,
                init=buffer.load(),
                exist_ok=True,
            )
            for buffer in flat.buffers
        )
        self._phase = box.counter(f"{name}.phase")
        self._in_use = False
        self.fetch()
        self._seen = self._version()

    def __iter__(self) -> Iterator[tuple[FlatBuffer, RegionLike]]:
        """Iterate over the pairs of buffer and region."""
        return iter(zip(self.flat.buffers, self.regions, strict=True))

    @property
    def nbytes(self) -> int:
        """Bytes of the center."""
        return self.flat.nbytes

    def fetch(self) -> None:
        """Overwrite the worker's values by the center's."""
        for buffer, region in self:
            region.get(out=buffer.host)
            buffer.store()

    def values(self) -> dict[str, torch.Tensor]:
        """Return a copy of the center: dtype -> ``[P]`` on the CPU."""
        copies = {}
        for buffer, region in self:
            copy = torch.empty(buffer.flat.shape, dtype=buffer.flat.dtype)
            region.get(out=as_array(copy))
            copies[buffer.dtype] = copy
        return copies

    def use(self) -> None:
        """Tell that work with the center begins; waits while a checkpoint is written to it."""
        if self._in_use:
            return
        self._phase.compare_and_swap(FRESH, IN_USE)
        self._phase.wait(at_least=IN_USE, timeout_s=RESTORE_TIMEOUT_S)
        self._in_use = True

    def restore(self, values: dict[str, torch.Tensor], *, force: bool = False) -> None:
        """Write a checkpoint's values, unless workers have begun to use the center.

        Args:
            values: as :meth:`values` returned them.
            force: write them in any case.
        """
        mine = self._phase.compare_and_swap(FRESH, RESTORING) == FRESH
        if mine or force:
            for buffer, region in self:
                region.put(as_array(values[buffer.dtype]))
        if mine:
            self._phase.compare_and_swap(RESTORING, IN_USE)
        self._seen = self._version()

    def behind(self, *, mine: int = 1) -> int:
        """Return how many changes others made since I asked last, not counting ``mine``."""
        version, seen = self._version(), self._seen
        self._seen = version
        return round((version - seen) / self._stripes()) - mine

    def _stripes(self) -> int:
        return max(1, -(-self.regions[0].nbytes // STRIPE_NBYTES))

    def _version(self) -> int:
        return self.regions[0].version

"""What regions ask of a path beyond ranges: rows, snapshots, optimizers. Pure.

One request each, as ``Work``; the rules of base.py hold for them too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from smbox.memory.optimizers import OptimizerCode
from smbox.paths.work import Bytes, Operation, RegionInfo, Work


class RowsWanted(NamedTuple):
    """A read of rows.

    Args:
        first: byte of the region's data where row 0 begins.
        row_nbytes: of each row; 1 to 1 MiB.
        places: ``i64[count]``, count at least 1, all inside the region.
        out: ``u8[count, row_nbytes]``.
    """

    first: int
    row_nbytes: int
    places: NDArray[np.int64]
    out: Bytes


@dataclass(frozen=True, slots=True)
class OptimizerStep:
    """One step of a server-side optimizer on a whole region.

    Args:
        optimizer: which one.
        siblings: the regions of its state, in the order of its row in ``OPTIMIZERS``.
        parameters: in the order of that row.
        gradient: as many elements as the region has, of its dtype, C-contiguous.
    """

    optimizer: OptimizerCode
    siblings: tuple[RegionInfo, ...]
    parameters: tuple[float, ...]
    gradient: NDArray[Any]


class Lease:
    """A staging region while one work uses it.

    Attributes:
        info: of the region.

    Args:
        info: of the region.
        end: takes it back: to be used again, or (False) to be freed.
    """

    def __init__(self, info: RegionInfo, end: Callable[[RegionInfo, bool], None]) -> None:
        self.info = info
        self._end = end
        self._is_over = False

    def give(self) -> None:
        """Let the next operation have it; after the first ending nothing happens."""
        self._over(is_sound=True)

    def drop(self) -> None:
        """Let nobody have it again; after the first ending nothing happens."""
        self._over(is_sound=False)

    def holds(self, address: object) -> bool:
        """Tell whether ``address`` lies in it."""
        begin = int(self.info.address)
        return isinstance(address, int) and begin <= address < begin + self.info.nbytes

    def _over(self, *, is_sound: bool) -> None:
        if not self._is_over:
            self._is_over = True
            self._end(self.info, is_sound)


class SpecialPath(Protocol):
    """The part of a data path that few regions need."""

    def gather(self, info: RegionInfo, wanted: RowsWanted) -> Work:
        """Begin to read rows."""

    def change_from(
        self, info: RegionInfo, operation: Operation, source: RegionInfo, source_first: int
    ) -> Work:
        """Begin a change whose operand is as many bytes of ``source``, read by stripes."""

    def step(self, info: RegionInfo, step: OptimizerStep) -> Work:
        """Begin a step of an optimizer: parameters and state together, stripe by stripe."""

    def snapshot(
        self, info: RegionInfo, first: int, limit: int, out: Bytes, lease: Lease | None
    ) -> Work:
        """Begin to read a range as it was at one moment.

        Args:
            info: the region.
            first: byte of its data.
            limit: byte behind the last.
            out: ``u8[limit - first]``.
            lease: of staging as large as the range, where ``stages_snapshots`` says so.
        """

    def stages_snapshots(self, first: int, limit: int) -> bool:
        """Tell whether ``snapshot`` needs staging for a range."""

"""What regions ask of a path beyond ranges: rows, snapshots, optimizers. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from smbox.memory.kernels import OptimizerCode
from smbox.paths.work import Bytes, RegionInfo


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
        gradient: as many elements as the region has, C-contiguous.
        operand: dtype code of the gradient where it is narrower than the region; else 0.
    """

    optimizer: OptimizerCode
    siblings: tuple[RegionInfo, ...]
    parameters: tuple[float, ...]
    gradient: NDArray[Any]
    operand: int = 0


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

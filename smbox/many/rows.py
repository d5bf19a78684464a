"""StripedRows: rows of a striped region, sorted to the nodes they lie on; see smbox/rows.py."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from smbox.array import output_array, source_array
from smbox.handle import Handle
from smbox.many.striping import Placed
from smbox.many.work import ManyWork, Share
from smbox.memory.kernels import KernelCode, scale_of
from smbox.paths.pair import PathPair
from smbox.paths.requests import nothing
from smbox.rows import Rows
from smbox.verbs import Extent


class StripedRows(Rows):
    """Rows of a striped region or slice; keeps a copy of the index.

    Args:
        paths: to the node of the region's name, for the settings.
        extent: the region or slice.
        placed: its rows, by node.
        index: whole numbers of any shape, 0 to the length of axis 0.
    """

    __slots__ = ("_placed",)

    def __init__(
        self, paths: PathPair, extent: Extent, placed: tuple[Placed, ...], index: Any
    ) -> None:
        super().__init__(paths, extent, index)
        self._placed = placed

    def _get(self, out: Any) -> Handle[Any]:
        if out is None:
            array = np.empty(self.shape, self.dtype)
        else:
            array = output_array(out, self.dtype, self.shape, may_be_narrower=True)
        result = array if out is None else out
        table = self._table(array)
        asked = self._asked(lambda rows, _: rows.get_nb(np.empty(rows.shape, array.dtype)))

        def filled() -> Any:
            for picked, share in asked:
                table[picked] = share.result()
            return result

        return self._handle("get", asked, filled)

    def _put(self, values: Any) -> Handle[None]:
        return self._each("put", values, lambda rows, table: rows.put_nb(table))

    def _accumulate(self, values: Any, scale: float) -> Handle[None]:
        scale_of(KernelCode.SUM, self._extent.info.dtype, scale)
        return self._each(
            "accumulate", values, lambda rows, table: rows.accumulate_nb(table, scale)
        )

    def _each(
        self, op: str, values: Any, change: Callable[[Rows, NDArray[Any]], Handle[None]]
    ) -> Handle[None]:
        """Let each node change its rows by its share of ``values``."""
        table = self._table(source_array(values, self.dtype, self.shape, may_be_narrower=True))
        asked = self._asked(lambda rows, picked: change(rows, table[picked]))
        return self._handle(op, asked, nothing)

    def _table(self, array: NDArray[Any]) -> NDArray[Any]:
        """View ``[shape]`` as one row after the other."""
        return array.reshape(self._places.size, *self._extent.shape[1:])

    def _asked(
        self, start: Callable[[Rows, NDArray[np.intp]], Handle[Any]]
    ) -> list[tuple[NDArray[np.intp], Share]]:
        """Make the share of each node that has some of the rows, in the order of the index.

        Without any row, one node is asked whether the region still lives.
        """
        asked: list[tuple[NDArray[np.intp], Share]] = []
        for each in self._placed:
            is_here = (self._places >= each.first_row) & (self._places < each.limit_row)
            picked = np.flatnonzero(is_here)
            if picked.size or (not self._places.size and not asked):
                local = self._places[picked] - each.first_row
                rows = each.region.rows(local)
                asked.append(
                    (picked, Share(each.node, each.offset, partial(start, rows, picked)))
                )
        return asked

    def _handle(
        self,
        op: str,
        asked: list[tuple[NDArray[np.intp], Share]],
        result: Callable[[], Any],
    ) -> Handle[Any]:
        work = ManyWork([share for _, share in asked])
        return Handle(op, work, result, self._paths.timeout_s)

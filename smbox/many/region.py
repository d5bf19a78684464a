"""StripedRegion: a region in parts on several nodes, with the verbs of any region.

A verb goes to all parts at once and ends when all have ended. Each part keeps what region.py
promises; the whole is not one commit, and another client may see the change of one part before
that of another. An error names its node; the other parts have been changed. docs/many_nodes.md
says what is left then.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from smbox import signalling, vector, verbs
from smbox.address import GlobalAddress, Part
from smbox.array import output_array
from smbox.errors import ConfigError
from smbox.handle import Handle
from smbox.many.rows import StripedRows
from smbox.many.striping import Placed, Striping, beside, check_alike
from smbox.many.version import VersionSum, version_of
from smbox.many.work import ManyWork, Share
from smbox.paths.requests import change_nb, nothing
from smbox.paths.work import Operation
from smbox.region import Region
from smbox.sync import Counter
from smbox.vector import Vector

T = TypeVar("T")


class StripedRegion(Region):
    """A striped region, or a slice of one along axis 0. Thread-safe. Pickles.

    Attributes:
        striping: of the whole region.
        placed: these rows, by node.

    Args:
        striping: as the attribute.
        first_row: of the slice.
        limit_row: behind its last row; None: that of the whole region.
    """

    __slots__ = ("_first_row", "placed", "striping")

    def __init__(
        self, striping: Striping, first_row: int = 0, limit_row: int | None = None
    ) -> None:
        info = striping.info
        rows = info.shape[0] if info.shape else 1
        limit = rows if limit_row is None else limit_row
        shape = (max(0, limit - first_row), *info.shape[1:]) if info.shape else ()
        row_nbytes = math.prod(info.shape[1:]) * info.dtype.itemsize
        super().__init__(striping.paths, info, shape, first_row * row_nbytes)
        self.striping = striping
        self._first_row = first_row
        self.placed = striping.between(first_row, limit)

    @property
    def address(self) -> GlobalAddress:
        """Global address of the first byte; the next part is elsewhere, see ``parts``."""
        return self.placed[0].region.address

    @property
    def parts(self) -> tuple[Part, ...]:
        """Where the rows lie, in their order."""
        return tuple(
            Part(
                each.node.id,
                each.region.address,
                each.first_row,
                each.limit_row,
                each.region.is_local,
            )
            for each in self.placed
        )

    @property
    def version(self) -> int:
        """How many commits all parts of the whole region have seen together."""
        return version_of(self.striping)

    @property
    def is_local(self) -> bool:
        """Whether this process maps the memory of all these rows."""
        return all(each.region.is_local for each in self.placed)

    def local(self) -> NDArray[Any]:
        """Return the memory itself, of rows of one part; see ``Region.local``.

        Raises:
            ConfigError: these rows lie in several parts, or cannot be mapped.
        """
        only = self._only("local")
        with only.node.named():
            return only.region.local()

    def put(
        self, x: Any, *, signal: Counter | None = None, timeout_s: float | None = None
    ) -> None:
        """Replace the contents by ``x``; atomic by stripe. The signal is of all parts."""
        self._put(x, signal).finish(timeout_s)

    def put_nb(self, x: Any, *, signal: Counter | None = None) -> Handle[None]:
        """Begin a ``put``."""
        return signalling.begin(self._put(x, signal))

    def _put(self, x: Any, signal: Counter | None) -> Handle[None]:
        put = self._change(verbs.put(self.extent, x))
        return put if signal is None else signalling.behind(put, signal)

    def get(
        self, out: Any = None, *, snapshot: bool = False, timeout_s: float | None = None
    ) -> Any:
        """Read the contents; see ``Region.get``.

        Raises:
            ConfigError: a ``snapshot`` of rows that lie in several parts.
        """
        if snapshot:
            only = self._only("snapshot")
            with only.node.named():
                return only.region.get(out, snapshot=True, timeout_s=timeout_s)
        return self._get(out).finish(timeout_s)

    def get_nb(self, out: Any = None, *, snapshot: bool = False) -> Handle[Any]:
        """Begin a ``get``."""
        if snapshot:
            self._only("snapshot")
        return self._get(out, snapshot=snapshot).begin()

    def _get(self, out: Any, *, snapshot: bool = False) -> Handle[Any]:
        if out is None:
            array = out = np.empty(self.shape, self.dtype)
        else:
            array = output_array(out, self.dtype, self.shape, may_be_narrower=not snapshot)
        return self._each(
            "get",
            lambda part: part.region.get_nb(part.of(array), snapshot=snapshot),
            lambda: out,
        )

    def accumulate(
        self,
        x: Any,
        scale: float = 1.0,
        op: str = "sum",
        *,
        out: Any = None,
        timeout_s: float | None = None,
    ) -> Any:
        """Combine ``x`` into the contents; see ``Region.accumulate``."""
        return self._accumulate(x, scale, op, out).finish(timeout_s)

    def accumulate_nb(
        self, x: Any, scale: float = 1.0, op: str = "sum", *, out: Any = None
    ) -> Handle[Any]:
        """Begin an ``accumulate``."""
        return self._accumulate(x, scale, op, out).begin()

    def _accumulate(self, x: Any, scale: float, op: str, out: Any) -> Handle[Any]:
        return self._change(verbs.accumulate(self.extent, x, scale, op, out), lambda: out)

    def elastic(
        self, x: Any, moving_rate: float, delta: Any = None, *, timeout_s: float | None = None
    ) -> Any:
        """Exchange elastically with the contents; see ``Region.elastic``."""
        return self._elastic(x, moving_rate, delta).finish(timeout_s)

    def elastic_nb(self, x: Any, moving_rate: float, delta: Any = None) -> Handle[Any]:
        """Begin an ``elastic``."""
        return self._elastic(x, moving_rate, delta).begin()

    def _elastic(self, x: Any, moving_rate: float, delta: Any) -> Handle[Any]:
        operation = verbs.elastic(self.extent, x, moving_rate, delta)
        return self._change(operation, lambda: delta)

    def fetch_and_op(
        self, x: Any, op: str = "sum", scale: float = 1.0, *, timeout_s: float | None = None
    ) -> NDArray[Any]:
        """Do what ``accumulate`` does and return the contents from before it."""
        return self._fetch(x, op, scale).finish(timeout_s)

    def fetch_and_op_nb(
        self, x: Any, op: str = "sum", scale: float = 1.0
    ) -> Handle[NDArray[Any]]:
        """Begin a ``fetch_and_op``."""
        return self._fetch(x, op, scale).begin()

    def _fetch(self, x: Any, op: str, scale: float) -> Handle[NDArray[Any]]:
        old = np.empty(self.shape, self.dtype)
        return self._change(verbs.fetch(self.extent, x, op, scale, old), lambda: old)

    def wait(self, version: int, *, timeout_s: float | None = None) -> int:
        """Wait until the parts' versions add up to ``version`` or more; return the sum."""
        wanted_s = self._paths.seconds(timeout_s)
        work = VersionSum(self.striping, operator.index(version))
        Handle("wait", work, nothing, wanted_s).finish(timeout_s)
        return work.found

    def _from(self, source: Vector, scale: float, op: str) -> Handle[None]:
        verbs.kernel_of(self.info, op, scale)
        pairs = self._beside(source)
        return self._each(
            "accumulate_from",
            lambda part: part.region.accumulate_from_nb(pairs[part.node.id], scale, op),
        )

    def _scaled(self, factor: float) -> Handle[None]:
        return self._change(verbs.scale(self.extent, factor))

    def _dot(self, other: Vector) -> Handle[float]:
        pairs = self._beside(other)
        vector.check_floats(self.extent)
        shares = self._shares(lambda part: part.region.dot_nb(pairs[part.node.id]))
        return self._handle(
            "dot", shares, lambda: vector.total([share.result() for share in shares])
        )

    def _beside(self, other: Vector) -> dict[int, Region]:
        """Return the parts of another region that lie beside these, by node."""
        if not isinstance(other, Region):
            raise TypeError(f"the source is a region, not {type(other).__name__}")
        check_alike(self, other)
        placed = other.placed if isinstance(other, StripedRegion) else ()
        return beside(self.placed, placed)

    def rows(self, index: Any) -> StripedRows:
        """Return the rows ``index`` along axis 0, to get, put or accumulate only them."""
        return StripedRows(self._paths, self.extent, self.placed, index)

    def __getitem__(self, index: Any) -> StripedRegion:
        """Return the slice ``[a:b]`` along axis 0 as a region of its own shape."""
        if not isinstance(index, slice) or index.step not in {None, 1} or not self.shape:
            raise TypeError("regions take one slice a:b, along axis 0")
        first, limit, _ = index.indices(self.shape[0])
        begin = self._first_row + first
        return StripedRegion(self.striping, begin, max(begin, self._first_row + limit))

    def __reduce__(self) -> tuple[type[StripedRegion], tuple[object, ...]]:
        """Travel as the parts' settings and descriptions."""
        limit_row = self._first_row + (self.shape[0] if self.shape else 1)
        return StripedRegion, (self.striping, self._first_row, limit_row)

    def _change(self, operation: Operation, result: Callable[[], Any] = nothing) -> Handle[Any]:
        """Describe a change of all these rows; each node does its share of it."""

        def begin(part: Placed) -> Handle[None]:
            return change_nb(part.node.paths, part.share_of(operation), nothing)

        return self._each(operation.op, begin, result)

    def _shares(self, start: Callable[[Placed], Handle[Any]]) -> list[Share]:
        return [Share(each.node, each.offset, partial(start, each)) for each in self.placed]

    def _each(
        self,
        op: str,
        start: Callable[[Placed], Handle[Any]],
        result: Callable[[], Any] = nothing,
    ) -> Handle[Any]:
        return self._handle(op, self._shares(start), result)

    def _handle(self, op: str, shares: list[Share], result: Callable[[], T]) -> Handle[T]:
        return Handle(op, ManyWork(shares), result, self._paths.timeout_s)

    def _only(self, wanted: str) -> Placed:
        if len(self.placed) > 1:
            raise ConfigError(
                f"{wanted} is of rows of one part: take a slice by region.parts",
                region=self.name,
                nodes=[each.node.id for each in self.placed],
            )
        return self.placed[0]

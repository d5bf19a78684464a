"""Region: a named, typed, shaped array in the global address space, and its one-sided verbs.

Every verb has a twin ``verb_nb`` that returns a Handle; until that is done its arrays are
untouchable. Verbs of one thread on one region take effect in program order. What a timeout or
a crash leaves stands in docs/memory_model.md. Everywhere below:

    x         an array of the region's (or slice's) shape and dtype; see smbox.array. For a
              float32 region also of float16 or bfloat16: it widens exactly
    timeout_s seconds to wait; None: the box's, anew while x gets through; math.inf: for ever

and every verb may raise

    LayoutMismatchError, TypeError  x does not fit; nothing was sent
    ConfigError                     the operation makes no sense for the dtype; nothing was sent
    RegionFreedError                the region was freed; stripes before that are changed
    RequestTimeoutError             the verb is over: ``.handle.outcome()`` tells its effect
    PeerLostError                   the box was closed meanwhile, or the memory is another's
"""

from __future__ import annotations

import math
import operator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from smbox import verbs
from smbox.address import GlobalAddress, Part
from smbox.errors import ConfigError
from smbox.handle import Handle
from smbox.paths.pair import PathPair
from smbox.paths.work import Piece, RegionInfo
from smbox.rows import Rows
from smbox.sync import Counter
from smbox.vector import Vector
from smbox.verbs import Extent


class Region(Vector):
    """A region, or a slice of one along axis 0: ``region[a:b]`` has the same verbs.

    Thread-safe. Pickles: the copy connects by itself.

    Attributes:
        info: what the whole region is.
        extent: which part of it this is.
        shape, nbytes: of the region or slice.
        dtype: numpy's.

    Args:
        paths: to the node, shared with the box.
        info: what the region is.
        shape: of the slice; None: the whole region.
        first: byte of the region's data where the slice begins.
    """

    __slots__ = ("dtype", "info", "nbytes", "shape")

    def __init__(
        self,
        paths: PathPair,
        info: RegionInfo,
        shape: tuple[int, ...] | None = None,
        first: int = 0,
    ) -> None:
        self._paths = paths
        self.info = info
        self.dtype: np.dtype[Any] = info.dtype.numpy
        self.shape = info.shape if shape is None else shape
        self.nbytes = math.prod(self.shape) * self.dtype.itemsize
        self.extent = Extent(info, self.dtype, self.shape, first, first + self.nbytes)

    @property
    def name(self) -> str:
        """The region's name."""
        return self.info.name

    @property
    def address(self) -> GlobalAddress:
        """Global address of the first byte; on several nodes the next part is elsewhere."""
        first = self._pieces()[0]
        return first.info.address + first.first

    @property
    def parts(self) -> tuple[Part, ...]:
        """Where the rows lie, in their order: one entry for each node that has some.

        It asks nobody: of a freed region, where they lay.
        """
        rows = self.shape[0] if self.shape else 1
        row_nbytes = self.nbytes // max(rows, 1)
        found, limit_row = [], 0
        for piece in self._pieces():
            first_row = limit_row
            limit_row = first_row + piece.nbytes // row_nbytes if row_nbytes else rows
            address = piece.info.address + piece.first
            is_local = self._paths.data(piece.info).transport == "shm"
            found.append(Part(address.node, address, first_row, limit_row, is_local))
        return tuple(found)

    def _pieces(self) -> list[Piece]:
        return self.info.pieces(self.extent.first, self.extent.limit)

    @property
    def version(self) -> int:
        """How many commits the whole region has seen, all its parts together.

        Raises:
            RegionFreedError: it was freed.
        """
        return self._paths.data(self.info).version(self.info)

    @property
    def is_local(self) -> bool:
        """Whether this process maps the memory of all rows; it asks nobody, see ``parts``."""
        return all(part.is_local for part in self.parts)

    def local(self) -> NDArray[Any]:
        """Return the region's memory itself, ``[shape]``.

        Reads of it may see half a commit; stores to it are no commits, count no version and
        may be undone by a recovery. The view keeps freed memory.

        Raises:
            ConfigError: this process cannot map it, and says why; or the rows lie in several
                parts.
        """
        span = self.extent.first, self.extent.limit
        view = self._paths.data(self.info).view(self.info, *span)
        if view is None:
            raise ConfigError(f"no local view: {self._paths.open().reason}", region=self.name)
        return view.view(self.dtype).reshape(self.shape)

    def put(
        self, x: Any, *, signal: Counter | None = None, timeout_s: float | None = None
    ) -> None:
        """Replace the contents by ``x``; atomic by stripe.

        With a ``signal``, a counter of any node, 1 is added to it once all of x is there: who
        sees the counter sees x. It was added where the outcome is "all", and only there.
        """
        operation = verbs.put(self.extent, x)
        if signal is None:
            self._paths.finish(operation, timeout_s)
        else:
            self._paths.seconds(timeout_s)  # before anything is sent
            verbs.put_signal(self._paths, operation, signal).finish(timeout_s)

    def put_nb(self, x: Any, *, signal: Counter | None = None) -> Handle[None]:
        """Begin a ``put``; one with its signal on another node is waited for."""
        operation = verbs.put(self.extent, x)
        if signal is None:
            return self._paths.begin(operation)
        return verbs.put_signal_nb(self._paths, operation, signal)

    def get(
        self, out: Any = None, *, snapshot: bool = False, timeout_s: float | None = None
    ) -> Any:
        """Read and return the contents; each stripe as it was between two commits.

        Args:
            out: receives them; None: a new array. Of a float32 region it may be float16 or
                bfloat16: each element is rounded to nearest.
            snapshot: all stripes as they were at one moment: writers wait for the copy. Over
                the wire it is made at the node, and needs as much memory as the region.
            timeout_s: see the module.
        """
        reading = (verbs.snapshot if snapshot else verbs.get)(self.extent, out)
        self._paths.finish(reading, timeout_s)
        return reading.out if out is None else out

    def get_nb(self, out: Any = None, *, snapshot: bool = False) -> Handle[Any]:
        """Begin a ``get``."""
        reading = (verbs.snapshot if snapshot else verbs.get)(self.extent, out)
        return self._paths.begin(reading, lambda: reading.out if out is None else out)

    def accumulate(
        self,
        x: Any,
        scale: float = 1.0,
        op: str = "sum",
        *,
        out: Any = None,
        timeout_s: float | None = None,
    ) -> Any:
        """Combine ``x`` into the contents; no update is lost, doubled or torn.

        Args:
            x: the operand.
            scale: factor of x, for ``op="sum"``; whole in a region of integers.
            op: "sum" (``c += scale * x``; of bools "or"), "min", "max" or "replace".
            out: if given, receives the sum, the contents right after it, and is returned.
            timeout_s: see the module.
        """
        operation = verbs.accumulate(self.extent, x, scale, op, out)
        self._paths.finish(operation, timeout_s)
        return out

    def accumulate_nb(
        self, x: Any, scale: float = 1.0, op: str = "sum", *, out: Any = None
    ) -> Handle[Any]:
        """Begin an ``accumulate``."""
        operation = verbs.accumulate(self.extent, x, scale, op, out)
        return self._paths.begin(operation, lambda: out)

    def elastic(
        self, x: Any, moving_rate: float, delta: Any = None, *, timeout_s: float | None = None
    ) -> Any:
        """Exchange elastically with the contents c: ``d = rate * (x - c); c += d; x -= d``.

        Atomic by stripe: c gains exactly, bit for bit, what x loses, unless the process is
        killed and the memory of x outlives it. Source: EASGD, Zhang et al., arXiv:1412.6651.

        Args:
            x: the worker's elements, moved in place; of a float dtype. A narrower x is
                ``round(x - d)``: x + c is then not conserved to the bit, and a small d does
                not move it.
            moving_rate: alpha.
            delta: if given, receives d, and x is left alone.
            timeout_s: see the module.

        Returns:
            ``delta`` (None without one).
        """
        operation = verbs.elastic(self.extent, x, moving_rate, delta)
        self._paths.finish(operation, timeout_s)
        return delta

    def elastic_nb(self, x: Any, moving_rate: float, delta: Any = None) -> Handle[Any]:
        """Begin an ``elastic``."""
        operation = verbs.elastic(self.extent, x, moving_rate, delta)
        return self._paths.begin(operation, lambda: delta)

    def fetch_and_op(
        self, x: Any, op: str = "sum", scale: float = 1.0, *, timeout_s: float | None = None
    ) -> NDArray[Any]:
        """Do what ``accumulate`` does and return the contents from before it."""
        old = np.empty(self.shape, self.dtype)
        self._paths.finish(verbs.fetch(self.extent, x, op, scale, old), timeout_s)
        return old

    def fetch_and_op_nb(
        self, x: Any, op: str = "sum", scale: float = 1.0
    ) -> Handle[NDArray[Any]]:
        """Begin a ``fetch_and_op``."""
        old = np.empty(self.shape, self.dtype)
        operation = verbs.fetch(self.extent, x, op, scale, old)
        return self._paths.begin(operation, lambda: old)

    def wait(self, version: int, *, timeout_s: float | None = None) -> int:
        """Wait until the whole region's version is at least ``version``; return it."""
        wanted = operator.index(version)
        return self._paths.wait_version(self.info, wanted, timeout_s)

    def rows(self, index: Any) -> Rows:
        """Return the rows ``index`` along axis 0, to get, put or accumulate only them."""
        return Rows(self._paths, self.extent, index)

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("a region without axes has no length")
        return self.shape[0]

    def __getitem__(self, index: Any) -> Region:
        """Return the slice ``[a:b]`` along axis 0 as a region of its own shape."""
        if not isinstance(index, slice) or index.step not in {None, 1} or not self.shape:
            raise TypeError("regions take one slice a:b, along axis 0")
        first, limit, _ = index.indices(self.shape[0])
        shape = (max(0, limit - first), *self.shape[1:])
        row_nbytes = math.prod(self.shape[1:]) * self.dtype.itemsize
        return Region(self._paths, self.info, shape, self.extent.first + first * row_nbytes)

    def __repr__(self) -> str:
        return (
            f"Region({self.name!r}, shape={self.shape}, dtype={self.dtype}, at={self.address})"
        )

    def __reduce__(self) -> tuple[type[Region], tuple[object, ...]]:
        """Travel as the box's settings and description."""
        return Region, (self._paths, self.info, self.shape, self.extent.first)

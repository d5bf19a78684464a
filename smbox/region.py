"""Region: a named, typed, shaped array in the global address space, and its one-sided verbs.

Every verb has a non-blocking twin, ``verb_nb``, that returns a Handle. The arrays given to it
must not be modified until the handle is done. Verbs of one thread on one region take effect in
program order. docs/memory_model.md describes the state after a timeout or crash. In all verbs:

    x         an array of the region's (or slice's) shape and dtype; see smbox.array. For a
              float32 region also float16 or bfloat16, which is widened exactly.
    timeout_s seconds to wait; None: the timeout of the box, which restarts as long as part of x
              is transferred; math.inf: no timeout.

Every verb may raise

    LayoutMismatchError, TypeError  x does not fit; nothing was sent
    ConfigError                     the dtype has no such operation; nothing was sent
    RegionFreedError                the region was freed; earlier stripes are changed
    RequestTimeoutError             the verb is over: ``.handle.outcome()`` returns its effect
    PeerLostError                   the box was closed, or the region's memory no longer exists
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
from smbox.rows import Rows
from smbox.sync import Counter
from smbox.vector import Vector


class Region(Vector):
    """A region, or a slice of one along axis 0: ``region[a:b]`` has the same verbs.

    Thread-safe. A pickled copy connects by itself.

    Attributes:
        info: description of the entire region.
        first, limit: bytes of the region's data that this object covers.
        shape, nbytes: shape and number of bytes of the region or slice.
        dtype: numpy dtype of the elements.

    Args:
        paths: paths to the node, shared with the box.
        info: description of the entire region.
        shape: shape of the slice; None: the entire region.
        first: first byte of the slice in the region's data.
    """

    __slots__ = ()

    @property
    def name(self) -> str:
        """Name of the region."""
        return self.info.name

    @property
    def address(self) -> GlobalAddress:
        """Global address of the first byte; parts on other nodes have other addresses."""
        first = self.info.pieces(self.first, self.limit)[0]
        return first.info.address + first.first

    @property
    def parts(self) -> tuple[Part, ...]:
        """The rows on each node, in order of rows; sends no request.

        For a freed region, these are the places where its rows were.
        """
        rows = self.shape[0] if self.shape else 1
        row_nbytes = self.nbytes // max(rows, 1)
        found, limit_row = [], 0
        for piece in self.info.pieces(self.first, self.limit):
            first_row = limit_row
            limit_row = first_row + piece.nbytes // row_nbytes if row_nbytes else rows
            address = piece.info.address + piece.first
            is_local = self._paths.data(piece.info).transport == "shm"
            found.append(Part(address.node, address, first_row, limit_row, is_local))
        return tuple(found)

    @property
    def version(self) -> int:
        """Number of commits that the entire region has seen, in all its parts.

        Raises:
            RegionFreedError: the region was freed.
        """
        return self._paths.data(self.info).version(self.info, self._paths.timeout_s)

    @property
    def is_local(self) -> bool:
        """Whether this process maps the memory of all rows; sends no request, see ``parts``."""
        return all(part.is_local for part in self.parts)

    def local(self) -> NDArray[Any]:
        """Return the region's own memory as an array, ``[shape]``.

        Reads may see an incomplete commit. Stores are not commits: they increase no version,
        and a recovery may undo them. The array stays valid after the region is freed.

        Raises:
            ConfigError: this process cannot map the memory, and the message says why; or the
                rows are in several parts.
            RegionFreedError: the region was freed.
        """
        view = self._paths.data(self.info).view(self.info, self.first, self.limit)
        if view is None:
            raise ConfigError(f"no local view: {self._paths.open().reason}", region=self.name)
        return view.view(self.dtype).reshape(self.shape)

    def put(
        self, x: Any, *, signal: Counter | None = None, timeout_s: float | None = None
    ) -> None:
        """Replace the contents with ``x``; atomic per stripe.

        Args:
            x: the new contents.
            signal: a counter on any node; 1 is added to it once all of x is written. A reader
                that sees the new value also sees x. The counter was increased if and only if
                the outcome is "all".
            timeout_s: see smbox.region.
        """
        operation = verbs.put(self, x)
        if signal is None:
            self._paths.finish(operation, timeout_s)
        else:
            self._paths.seconds(timeout_s)  # raises before anything is sent
            verbs.put_signal(self._paths, operation, signal).finish(timeout_s)

    def put_nb(self, x: Any, *, signal: Counter | None = None) -> Handle[None]:
        """Start a ``put``; with a signal on another node, also wait until it is done."""
        operation = verbs.put(self, x)
        if signal is None:
            return self._paths.begin(operation)
        return verbs.put_signal_nb(self._paths, operation, signal)

    def get(
        self, out: Any = None, *, snapshot: bool = False, timeout_s: float | None = None
    ) -> Any:
        """Read the contents; each stripe is as it was between two commits.

        Args:
            out: an array that receives the contents; None: a new array. For a float32 region
                it may be float16 or bfloat16: each element is rounded to nearest.
            snapshot: read all stripes as they were at one moment. Writers wait for the copy;
                over the wire, the node makes it, and needs as much memory as the region.
            timeout_s: see smbox.region.

        Returns:
            ``out``, or the new array, ``[shape]``.
        """
        reading = (verbs.snapshot if snapshot else verbs.get)(self, out)
        self._paths.finish(reading, timeout_s)
        return reading.out if out is None else out

    def get_nb(self, out: Any = None, *, snapshot: bool = False) -> Handle[Any]:
        """Start a ``get``; the handle's result is what ``get`` returns."""
        reading = (verbs.snapshot if snapshot else verbs.get)(self, out)
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
        """Combine ``x`` with the contents; atomic per stripe, so that no update is lost.

        Args:
            x: the operand.
            scale: factor of x, for ``op="sum"``; an integer in a region of integers.
            op: "sum" (``c += scale * x``; for bools "or"), "min", "max" or "replace".
            out: an array that receives the sum, the contents right after this change.
            timeout_s: see smbox.region.

        Returns:
            ``out`` (None without one).
        """
        operation = verbs.accumulate(self, x, scale, op, out)
        self._paths.finish(operation, timeout_s)
        return out

    def accumulate_nb(
        self, x: Any, scale: float = 1.0, op: str = "sum", *, out: Any = None
    ) -> Handle[Any]:
        """Start an ``accumulate``; the handle's result is what ``accumulate`` returns."""
        operation = verbs.accumulate(self, x, scale, op, out)
        return self._paths.begin(operation, lambda: out)

    def elastic(
        self, x: Any, moving_rate: float, delta: Any = None, *, timeout_s: float | None = None
    ) -> Any:
        """Move ``x`` and the contents c together: ``d = rate * (x - c); c += d; x -= d``.

        Atomic per stripe: c gains exactly, bit for bit, what x loses, unless the process is
        killed and the memory of x outlives it. Source: EASGD, Zhang et al., arXiv:1412.6651.

        Args:
            x: the worker's elements, changed in place; of a float dtype. A narrower x becomes
                ``round(x - d)``: then x + c is not conserved to the bit, and a small d does not
                change x.
            moving_rate: alpha.
            delta: an array that receives d; x is then not changed.
            timeout_s: see smbox.region.

        Returns:
            ``delta`` (None without one).
        """
        operation = verbs.elastic(self, x, moving_rate, delta)
        self._paths.finish(operation, timeout_s)
        return delta

    def elastic_nb(self, x: Any, moving_rate: float, delta: Any = None) -> Handle[Any]:
        """Start an ``elastic``; the handle's result is what ``elastic`` returns."""
        operation = verbs.elastic(self, x, moving_rate, delta)
        return self._paths.begin(operation, lambda: delta)

    def fetch_and_op(
        self, x: Any, op: str = "sum", scale: float = 1.0, *, timeout_s: float | None = None
    ) -> NDArray[Any]:
        """Change the contents as ``accumulate`` does; return the old contents, ``[shape]``."""
        old = np.empty(self.shape, self.dtype)
        self._paths.finish(verbs.fetch(self, x, op, scale, old), timeout_s)
        return old

    def fetch_and_op_nb(
        self, x: Any, op: str = "sum", scale: float = 1.0
    ) -> Handle[NDArray[Any]]:
        """Start a ``fetch_and_op``; the handle's result is the old contents."""
        old = np.empty(self.shape, self.dtype)
        operation = verbs.fetch(self, x, op, scale, old)
        return self._paths.begin(operation, lambda: old)

    def wait(self, version: int, *, timeout_s: float | None = None) -> int:
        """Wait until the version of the entire region is at least ``version``; return it."""
        return self._paths.wait_version(self.info, operator.index(version), timeout_s)

    def rows(self, index: Any) -> Rows:
        """Return the rows ``index`` along axis 0, to get, put or accumulate only these."""
        return Rows(self._paths, self, index)

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("a region without axes has no length")
        return self.shape[0]

    def __getitem__(self, index: Any) -> Region:
        """Return the slice ``[a:b]`` along axis 0 as a region of its own shape."""
        if not isinstance(index, slice) or index.step not in {None, 1} or not self.shape:
            raise TypeError("regions take one slice a:b, along axis 0; get() returns an array")
        first, limit, _ = index.indices(self.shape[0])
        shape = (max(0, limit - first), *self.shape[1:])
        row_nbytes = math.prod(self.shape[1:]) * self.dtype.itemsize
        return Region(self._paths, self.info, shape, self.first + first * row_nbytes)

    def __repr__(self) -> str:
        return (
            f"Region({self.name!r}, shape={self.shape}, dtype={self.dtype}, at={self.address})"
        )

    def __reduce__(self) -> tuple[type[Region], tuple[object, ...]]:
        """Pickle the settings and the description; the copy connects by itself."""
        return Region, (self._paths, self.info, self.shape, self.first)

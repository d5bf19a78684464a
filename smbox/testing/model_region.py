"""A region without a memory node: the verbs of ``smbox.Region`` on a numpy array.

The arithmetic is that of ``smbox.testing.kernels``, in plain numpy on whole arrays.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from smbox import dtypes
from smbox.array import output_array, source_array
from smbox.errors import RegionFreedError
from smbox.handle import Handle
from smbox.memory.kernels import KernelCode
from smbox.memory.layout import STRIPE_NBYTES
from smbox.testing.kernels import changed, exchange, native_scale
from smbox.testing.model_rows import ModelRows
from smbox.work import Work

__all__ = ["ModelRegion", "Shared", "Stored"]

Array = NDArray[Any]

OPS: dict[str, KernelCode] = {
    "sum": KernelCode.SUM,
    "min": KernelCode.MIN,
    "max": KernelCode.MAX,
    "replace": KernelCode.REPLACE,
}
NARROW = ("float16", "bfloat16")


class Shared(Protocol):
    """The part of a model memory that a region uses."""

    changed: threading.Condition

    def wait_for(
        self, is_true: Callable[[], bool], op: str, timeout_s: float | None = None
    ) -> None:
        """Wait, with the lock held, until a condition is true."""


@dataclass
class Stored:
    """Contents of a region and the count of its stripe commits."""

    data: Array
    consistency: str = "stripe"
    version: int = 0
    freed: bool = False


class ModelRegion:
    """A region, or a slice of one along axis 0."""

    is_local = False

    def __init__(
        self,
        name: str,
        stored: Stored,
        shared: Shared,
        note: Callable[[str], None],
        window: slice = slice(None),
    ) -> None:
        self.name = name
        self._stored = stored
        self._shared = shared
        self._note = note
        self._window = window

    @property
    def _data(self) -> Array:
        return (
            self._stored.data
            if self._stored.data.ndim == 0
            else self._stored.data[self._window]
        )

    @property
    def shape(self) -> tuple[int, ...]:
        """Its shape."""
        return self._data.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """Its dtype."""
        return self._data.dtype

    @property
    def nbytes(self) -> int:
        """Number of bytes of the data."""
        return self._data.nbytes

    @property
    def version(self) -> int:
        """Number of stripe commits of the whole region."""
        with self._shared.changed:
            return self._stored.version

    def __len__(self) -> int:
        return len(self._data)

    def __getitem__(self, key: slice) -> ModelRegion:
        """Return a slice along axis 0 with the same verbs."""
        inside = range(len(self._stored.data))[self._window][key]
        window = slice(inside.start, inside.stop)
        return ModelRegion(self.name, self._stored, self._shared, self._note, window)

    def put(self, x: Any) -> None:
        """Replace the contents with ``x``."""
        self._change("put", x, lambda _, new: new)

    def get(self, out: Any = None, *, snapshot: bool = False) -> Array:  # noqa: ARG002
        """Return a copy of the contents, in ``out`` if given; always a snapshot."""
        with self._shared.changed:
            self._check("get")
            if out is None:
                return self._data.copy()
            target = output_array(out, self.dtype, self.shape, may_be_narrower=True)
            target[...] = self._data
            return target

    def accumulate(
        self, x: Any, scale: float = 1.0, op: str = "sum", *, out: Any = None
    ) -> Any:
        """Combine ``scale * x`` with the contents by ``op``; ``out`` receives them."""
        kernel = self._kernel(op, scale)
        sums = None if out is None else output_array(out, self.dtype, self.shape)

        def combine(old: Array, new: Array) -> Array:
            found = kernel(old, new)
            if sums is not None:
                sums[...] = found
            return found

        self._change("accumulate", x, combine)
        return out

    def fetch_and_op(self, x: Any, op: str = "sum", scale: float = 1.0) -> Array:
        """Combine ``scale * x`` with the contents by ``op``; return the old contents."""
        return self._change("fetch_and_op", x, self._kernel(op, scale))

    def elastic(self, x: Any, moving_rate: float, delta: Any = None) -> Any:
        """Move ``x`` and the contents together; with ``delta`` return the move, leave ``x``."""
        source = self._source(x)
        move = None if delta is None else output_array(delta, self.dtype, self.shape)
        target = output_array(x, source.dtype, self.shape) if move is None else None

        def pull(old: Array, new: Array) -> Array:
            rate = native_scale(KernelCode.ELASTIC, dtypes.of(self.dtype), moving_rate)
            found = exchange(old, new, rate)
            if move is not None:
                move[...] = found.d
            if target is not None:
                target[...] = found.x
            return found.c

        self._change("elastic", source, pull)
        return delta

    def accumulate_from(self, source: ModelRegion, scale: float = 1.0, op: str = "sum") -> None:
        """Combine ``scale`` times another region's contents with these by ``op``."""
        self.accumulate(source.get(), scale, op)

    def scale(self, factor: float) -> None:
        """Multiply the contents by ``factor``."""
        kernel = native_scale(KernelCode.SCALE, dtypes.of(self.dtype), factor)
        self._change(
            "scale", self._data, lambda old, _: changed(KernelCode.SCALE, old, old, kernel)
        )

    def dot(self, other: ModelRegion) -> float:
        """Return the sum of the products with another region's elements, in float64."""
        return float(self.get().astype(float).ravel() @ other.get().astype(float).ravel())

    def rows(self, index: Any) -> ModelRows:
        """Return the rows ``index`` along axis 0."""

        def change(op: str, run: Callable[[Array], None]) -> None:
            with self._shared.changed:
                self._check(op)
                run(self._data)
                self._stored.version += 1
                self._shared.changed.notify_all()

        return ModelRows(self.get, change, len(self), index)

    def wait(self, version: int, *, timeout_s: float | None = None) -> int:
        """Wait until the version is at least ``version``; return it."""
        with self._shared.changed:
            self._shared.wait_for(lambda: self._stored.version >= version, "wait", timeout_s)
            return self._stored.version

    def put_nb(self, x: Any) -> Handle[None]:
        """Like put; the handle is done at once."""
        self.put(x)
        return _done("put", None)

    def get_nb(self, out: Any = None) -> Handle[Array]:
        """Like get; the handle is done at once."""
        return _done("get", self.get(out))

    def accumulate_nb(
        self, x: Any, scale: float = 1.0, op: str = "sum", *, out: Any = None
    ) -> Handle[Any]:
        """Like accumulate; the handle is done at once."""
        return _done("accumulate", self.accumulate(x, scale, op, out=out))

    def fetch_and_op_nb(self, x: Any, op: str = "sum", scale: float = 1.0) -> Handle[Array]:
        """Like fetch_and_op; the handle is done at once."""
        return _done("fetch_and_op", self.fetch_and_op(x, op, scale))

    def elastic_nb(self, x: Any, moving_rate: float, delta: Any = None) -> Handle[Any]:
        """Like elastic; the handle is done at once."""
        return _done("elastic", self.elastic(x, moving_rate, delta))

    def _kernel(self, op: str, scale: float) -> Callable[[Array, Array], Array]:
        code, dtype = OPS[op], dtypes.of(self.dtype)
        factor = native_scale(code, dtype, scale)
        return lambda old, new: changed(code, old, new, factor)

    def _source(self, x: Any) -> Array:
        """Return the operand: of the region's type, or a narrower float for float32."""
        given = getattr(x, "dtype", None)
        is_narrow = self.dtype == np.float32 and str(given).removeprefix("torch.") in NARROW
        dtype = dtypes.by_name(str(given).removeprefix("torch.")).numpy if is_narrow else None
        return source_array(x, dtype or self.dtype, self.shape)

    def _check(self, op: str) -> None:
        if self._stored.freed:
            raise RegionFreedError("the region was freed", region=self.name)
        self._note(op)

    def _change(self, op: str, x: Any, kernel: Callable[[Array, Array], Array]) -> Array:
        """Run a kernel on the contents, atomically; return the old ones."""
        source = self._source(x)
        with self._shared.changed:
            self._check(op)
            old = self._data.copy()
            self._data[...] = kernel(old, source)
            self._stored.version += self._stripes()
            self._shared.changed.notify_all()
            return old

    def _stripes(self) -> int:
        """Return the number of stripes in this window."""
        if self.nbytes == 0:
            return 0
        whole = self._stored.data
        first = range(len(whole))[self._window].start * whole.strides[0] if whole.ndim else 0
        return (first + self.nbytes - 1) // STRIPE_NBYTES - first // STRIPE_NBYTES + 1


class _Done(Work):
    """A request that is done."""

    def advance(self, deadline_s: float) -> bool:  # noqa: ARG002 - there is nothing to wait for
        return True

    def outcome(self) -> str:
        return "all"


def _done(op: str, value: Any) -> Handle[Any]:
    return Handle(op, _Done(), lambda: value)

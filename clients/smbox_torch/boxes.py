"""The protocol of a memory box: ``smbox.Box`` and ``ModelBox`` implement it.

Protocols only. Arrays are numpy arrays of the region's dtype and shape.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from numpy.typing import NDArray

__all__ = [
    "AddingRegionLike",
    "Array",
    "BoxLike",
    "CounterLike",
    "OptimizerLike",
    "RegionLike",
    "SteppingBoxLike",
    "check_box",
]

Array = NDArray[Any]


class RegionLike(Protocol):
    """A named, typed, shaped array that all workers share."""

    @property
    def nbytes(self) -> int:
        """Number of bytes of its data."""

    @property
    def dtype(self) -> Any:
        """Dtype of its elements."""

    @property
    def is_local(self) -> bool:
        """Whether all of its data is in mapped memory."""

    @property
    def version(self) -> int:
        """Number of its stripe commits."""

    def put(self, x: Any) -> Any:
        """Replace the contents with ``x``."""

    def get(self, out: Any = None) -> Array:
        """Return a copy of the contents, in ``out`` if it is given."""

    def accumulate(
        self, x: Any, scale: float = 1.0, op: str = "sum", *, out: Any = None
    ) -> Any:
        """Combine ``x`` with the contents; ``out`` receives the new contents."""

    def elastic(self, x: Any, moving_rate: float, delta: Any = None) -> Any:
        """Move ``x`` and the contents together; ``delta`` receives x's move instead of x."""

    def fetch_and_op(self, x: Any, op: str = "sum") -> Array:
        """Accumulate ``x`` and return the old contents."""

    def wait(self, version: int, *, timeout_s: float | None = None) -> int:
        """Wait until the version is at least ``version``; return it."""

    def __getitem__(self, key: slice) -> RegionLike:
        """Return a slice along axis 0 with the same verbs."""


class AddingRegionLike(Protocol):
    """A region to which the memory can add another region."""

    def accumulate_from(self, source: Any, scale: float = 1.0) -> Any:
        """Add ``scale`` times the contents of another region, at the memory."""


class CounterLike(Protocol):
    """A named integer that all workers share."""

    @property
    def value(self) -> int:
        """The current value."""

    def add(self, amount: int = 1) -> int:
        """Add ``amount``; return the old value."""

    def compare_and_swap(self, old: int, new: int) -> bool:
        """Set the value to ``new`` if it is ``old``; return whether it was."""

    def wait(self, at_least: int, *, timeout_s: float | None = None) -> int:
        """Wait until the value is at least ``at_least``; return it."""


class BoxLike(Protocol):
    """A connection to a memory node."""

    def create(
        self,
        name: str,
        *,
        shape: Any,
        dtype: Any = "float32",
        init: Any = 0.0,
        exist_ok: bool = False,
    ) -> RegionLike:
        """Create a region; with ``exist_ok``, return an existing equal region."""

    def counter(self, name: str) -> CounterLike:
        """Return the counter of this name; create it with the value 0 if needed."""

    def barrier(self, name: str, parties: int, *, timeout_s: float | None = None) -> int:
        """Wait until ``parties`` parties have arrived."""


class OptimizerLike(Protocol):
    """An optimizer that runs at the memory, on one region."""

    @property
    def states(self) -> Mapping[str, RegionLike]:
        """The regions of its state, by name."""

    def step(self, gradient: Any, *, lr: float | None = None) -> Any:
        """Take one step along ``gradient``."""


class SteppingBoxLike(BoxLike, Protocol):
    """A connection to a memory that can do optimizer steps on its regions."""

    def optimizer(self, region: Any, name: str, **parameters: float) -> OptimizerLike:
        """Return the optimizer of this name on a region; all workers share its state."""


def check_box(box: Any) -> None:
    """Raise TypeError unless ``box`` is a connection to a memory, as for None or an address."""
    if not all(hasattr(box, name) for name in ("create", "counter", "barrier")):
        raise TypeError(
            "box must be a connection to a memory, as smbox.connect() returns it, not "
            f"{type(box).__name__}"
        )

"""The protocol of a memory box: ``smbox.Box`` and ``ModelBox`` implement it.

Protocols only. Arrays are numpy arrays of the region's dtype and shape.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

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
        """Bytes of its data."""

    @property
    def dtype(self) -> Any:
        """Type of its elements."""

    @property
    def version(self) -> int:
        """How many stripe commits it has had."""

    def put(self, x: Any) -> Any:
        """Replace the contents by ``x``."""

    def get(self, out: Any = None) -> Array:
        """Return a copy of the contents, in ``out`` where it is given."""

    def accumulate(
        self, x: Any, scale: float = 1.0, op: str = "sum", *, out: Any = None
    ) -> Any:
        """Add ``scale * x`` to the contents (or take the minimum ...); ``out`` gets sums."""

    def elastic(self, x: Any, moving_rate: float, delta: Any = None) -> Any:
        """Move ``x`` and the contents together; with ``delta`` only tell the move of x."""

    def fetch_and_op(self, x: Any, op: str = "sum") -> Array:
        """Accumulate ``x`` and return the old contents."""

    def wait(self, version: int, *, timeout_s: float | None = None) -> int:
        """Return the version when it is at least this one."""

    def __getitem__(self, key: slice) -> RegionLike:
        """Return a slice along axis 0 with the same verbs."""


@runtime_checkable
class AddingRegionLike(Protocol):
    """A region whose memory can add another region to it."""

    def accumulate_from(self, source: Any, scale: float = 1.0) -> Any:
        """Add ``scale`` times another region's contents, at the memory."""


class CounterLike(Protocol):
    """A named integer that all workers share."""

    @property
    def value(self) -> int:
        """Its value now."""

    def add(self, amount: int = 1) -> int:
        """Add to it; return the value before."""

    def compare_and_swap(self, old: int, new: int) -> bool:
        """Set it to ``new`` if it is ``old``; return whether it was."""

    def wait(self, at_least: int, *, timeout_s: float | None = None) -> int:
        """Return the value when it is at least so much."""


@runtime_checkable
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
        """Create a region; with ``exist_ok`` an equal one that exists is the answer."""

    def counter(self, name: str) -> CounterLike:
        """Return the counter of this name, created at zero if it is new."""

    def barrier(self, name: str, parties: int, *, timeout_s: float | None = None) -> int:
        """Return when so many parties have arrived."""


class OptimizerLike(Protocol):
    """An optimizer at the memory, on one region."""

    @property
    def states(self) -> Mapping[str, RegionLike]:
        """The regions of its state, by name."""

    def step(self, gradient: Any, *, lr: float | None = None) -> Any:
        """Take one step along ``gradient``."""


class SteppingBoxLike(BoxLike, Protocol):
    """A memory whose regions can take optimizer steps by themselves."""

    def optimizer(self, region: Any, name: str, **parameters: float) -> OptimizerLike:
        """Return the optimizer of this name on a region; its state is shared by all."""


def check_box(box: Any) -> None:
    """Raise TypeError for what is no connection to a memory: None, or its address."""
    if not isinstance(box, BoxLike):
        raise TypeError(
            "box must be a connection to a memory, as smbox.connect() returns it, not "
            f"{type(box).__name__}"
        )

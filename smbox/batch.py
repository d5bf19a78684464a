"""Batch: many small changes in few round trips; no transaction."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from smbox import verbs
from smbox.errors import ConfigError
from smbox.paths.pair import PathPair
from smbox.paths.work import Changes, Operation
from smbox.region import Region
from smbox.verbs import Extent


class Batch:
    """Collects changes and sends them when its ``with`` block ends, in order.

    Each change is checked when it is collected, and its arrays are untouchable from then on
    until the block has ended. A block that raises sends nothing. The changes are commits of
    their own: another client may see some of them before others, and when one fails, the
    others still happen. Not to be shared by threads.

    Args:
        paths: to the node, shared with the box.
        timeout_s: for the whole batch; None: the timeout of the box.
    """

    def __init__(self, paths: PathPair, timeout_s: float | None = None) -> None:
        self._paths = paths
        paths.seconds(timeout_s)  # before anything is collected
        self._timeout_s = timeout_s
        self._operations: list[Operation] = []
        self._is_over = False

    def put(self, region: Region, x: Any) -> None:
        """Add a ``Region.put``."""
        self._add(verbs.put(_extent(region), x))

    def accumulate(self, region: Region, x: Any, scale: float = 1.0, op: str = "sum") -> None:
        """Add a ``Region.accumulate``."""
        self._add(verbs.accumulate(_extent(region), x, scale, op))

    def elastic(self, region: Region, x: Any, moving_rate: float, delta: Any = None) -> Any:
        """Add a ``Region.elastic``; x moves, or ``delta`` is filled, when the block ends."""
        self._add(verbs.elastic(_extent(region), x, moving_rate, delta))
        return delta

    def fetch_and_op(
        self, region: Region, x: Any, op: str = "sum", scale: float = 1.0
    ) -> NDArray[Any]:
        """Add a ``Region.fetch_and_op``; the array returned is filled when the block ends."""
        extent = _extent(region)
        old = np.empty(extent.shape, extent.dtype)
        self._add(verbs.fetch(extent, x, op, scale, old))
        return old

    def _add(self, operation: Operation) -> None:
        if self._is_over:
            raise ConfigError("the batch has been sent; begin another one")
        shares = [share for _, share in operation.shares()]
        for share in shares:
            self._paths.data(share.info)  # all of a change or nothing: no node is lost
        for share in shares:
            self._operations.extend(share.stripes())

    def __len__(self) -> int:
        """Count the commits collected so far."""
        return len(self._operations)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Send and wait; raises the first failure, or RequestTimeoutError with a handle."""
        self._is_over = True
        if kind is None and len(self):
            changes = Changes("batch", None, self._operations)
            self._paths.finish(changes, self._timeout_s)


def _extent(region: Region) -> Extent:
    if not isinstance(region, Region):
        raise TypeError(f"a batch changes regions, not {type(region).__name__}")
    return region.extent

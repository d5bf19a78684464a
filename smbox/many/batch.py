"""ManyBatch: a batch that is split by node; see smbox/batch.py."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from smbox import verbs
from smbox.array import output_array, source_array
from smbox.batch import Batch
from smbox.errors import AddressRangeError, ConfigError
from smbox.handle import Handle
from smbox.many.region import StripedRegion
from smbox.many.striping import Nodes, Placed
from smbox.many.work import ManyWork, Share
from smbox.region import Region


class ManyBatch(Batch):
    """Collects changes for several nodes and sends them when its ``with`` block ends.

    Changes of one node take effect in order; the nodes' changes go side by side. When a node
    is lost, the changes at the others still happen; a timeout tells the outcome at each node
    (``parts``), and no ranges.

    Args:
        nodes: all.
        timeout_s: for the whole batch; None: the timeout of the box.
    """

    def __init__(self, nodes: Nodes, timeout_s: float | None = None) -> None:
        super().__init__(next(iter(nodes.values())).paths, timeout_s)
        self._nodes = nodes
        self._batches: dict[int, Batch] = {}
        self._fetched: list[tuple[NDArray[Any], NDArray[Any]]] = []

    def put(self, region: Region, x: Any) -> None:
        """Add a ``Region.put``."""
        extent = self._extent(region)
        verbs.put(extent, x)  # checks the whole
        array = source_array(x, extent.dtype, extent.shape, may_be_narrower=True)
        for each in self._placed(region):
            self._of(each).put(each.region, each.of(array))

    def accumulate(self, region: Region, x: Any, scale: float = 1.0, op: str = "sum") -> None:
        """Add a ``Region.accumulate``."""
        extent = self._extent(region)
        verbs.kernel_of(extent.info, op, scale)
        array = source_array(x, extent.dtype, extent.shape, may_be_narrower=True)
        for each in self._placed(region):
            self._of(each).accumulate(each.region, each.of(array), scale, op)

    def elastic(self, region: Region, x: Any, moving_rate: float, delta: Any = None) -> Any:
        """Add a ``Region.elastic``; x moves, or ``delta`` is filled, when the block ends."""
        extent = self._extent(region)
        verbs.elastic(extent, x, moving_rate, delta)  # checks the whole
        if delta is None:
            array = output_array(x, extent.dtype, extent.shape, may_be_narrower=True)
            for each in self._placed(region):
                self._of(each).elastic(each.region, each.of(array), moving_rate)
            return None
        array = source_array(x, extent.dtype, extent.shape, may_be_narrower=True)
        out = output_array(delta, extent.dtype, extent.shape)
        for each in self._placed(region):
            self._of(each).elastic(each.region, each.of(array), moving_rate, each.of(out))
        return delta

    def fetch_and_op(
        self, region: Region, x: Any, op: str = "sum", scale: float = 1.0
    ) -> NDArray[Any]:
        """Add a ``Region.fetch_and_op``; the array returned is filled when the block ends."""
        extent = self._extent(region)
        verbs.kernel_of(extent.info, op, scale)
        array = source_array(x, extent.dtype, extent.shape, may_be_narrower=True)
        old = np.empty(extent.shape, extent.dtype)
        for each in self._placed(region):
            found = self._of(each).fetch_and_op(each.region, each.of(array), op, scale)
            self._fetched.append((each.of(old), found))
        return old

    def _extent(self, region: Region) -> verbs.Extent:
        if not isinstance(region, Region):
            raise TypeError(f"a batch changes regions, not {type(region).__name__}")
        if self._is_over:
            raise ConfigError("the batch has been sent; begin another one")
        return region.extent

    def _placed(self, region: Region) -> tuple[Placed, ...]:
        """Return the region's rows by node, unless one is lost: all of a change or nothing."""
        placed = region.placed if isinstance(region, StripedRegion) else self._whole(region)
        for each in placed:
            with each.node.named():
                each.node.paths.data(each.region.info)
        return placed

    def _whole(self, region: Region) -> tuple[Placed, ...]:
        node = self._nodes.get(region.address.node)
        if node is None:
            raise AddressRangeError(
                "no node of this box has such addresses", address=int(region.address)
            )
        return (Placed(node, region, 0, 0),)

    def _of(self, placed: Placed) -> Batch:
        node = placed.node
        if node.id not in self._batches:
            self._batches[node.id] = node.box.batch()
        return self._batches[node.id]

    def __len__(self) -> int:
        return sum(len(batch) for batch in self._batches.values())

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Send to all nodes and wait; raises the first failure, or RequestTimeoutError."""
        self._is_over = True
        if kind is None and len(self):
            self._handle().finish(self._timeout_s)

    def _handle(self) -> Handle[None]:
        shares = [
            Share(self._nodes[node_id], None, batch.send_nb)
            for node_id, batch in self._batches.items()
            if len(batch)
        ]
        return Handle("batch", ManyWork(shares), self._fill, self._paths.timeout_s)

    def _fill(self) -> None:
        for target, found in self._fetched:
            target[...] = found

"""ManyBatch: a batch that is split by node; see smbox/batch.py."""

from __future__ import annotations

from functools import partial

from smbox.batch import Batch
from smbox.errors import AddressRangeError
from smbox.handle import Handle
from smbox.many.region import StripedRegion
from smbox.many.striping import Nodes, Placed
from smbox.many.work import ManyWork, Share
from smbox.paths import requests
from smbox.paths.work import Operation
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
        self._by_node: dict[int, list[Operation]] = {}

    def _collect(self, region: Region, operation: Operation) -> None:
        for each in self._placed(region):
            parts = requests.cut(each.share_of(operation))
            self._by_node.setdefault(each.node.id, []).extend(parts)

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

    def __len__(self) -> int:
        return sum(map(len, self._by_node.values()))

    def _handle(self) -> Handle[None]:
        shares = [
            Share(self._nodes[node_id], None, partial(self._begin, node_id))
            for node_id, operations in self._by_node.items()
            if operations
        ]
        return Handle("batch", ManyWork(shares), requests.nothing, self._paths.timeout_s)

    def _begin(self, node_id: int) -> Handle[None]:
        paths = self._nodes[node_id].paths
        work = paths.data().batch(self._by_node[node_id])
        return Handle("batch", work, requests.nothing, paths.timeout_s).begin()

"""Links from workers to memory nodes: latency, and rate each way. Pure.

Workers do not talk to each other: they put to a memory node and get from it. So a link leads
from a worker to a node, and two workers meet at the node that is best for the slower of them.
W workers, N nodes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from typing import Final, Self

import numpy as np
from numpy.typing import NDArray

from smbox.errors import ConfigError

__all__ = ["COLUMNS", "Link", "Links"]

COLUMNS: Final = 5
"""Numbers of a link in an array: those of Link, then the number of the worker's host."""


@dataclass(frozen=True, slots=True)
class Link:
    """One worker's way to one memory node.

    Args:
        latency_s: of a read of one byte, there and back, in seconds.
        put_rate: bytes per second of a put; above 0.
        get_rate: bytes per second of a get; above 0.
        is_local: whether the worker maps the node's memory, so that no network is used.
    """

    latency_s: float
    put_rate: float
    get_rate: float
    is_local: bool = False

    def put_s(self, nbytes: float) -> float:
        """Predict the seconds of a put."""
        return self.latency_s + nbytes / self.put_rate

    def get_s(self, nbytes: float) -> float:
        """Predict the seconds of a get."""
        return self.latency_s + nbytes / self.get_rate


@dataclass(frozen=True, slots=True)
class Links:
    """All links of a run.

    Args:
        rows: ``[W][N]``: for each worker, by rank, its link to each node.
        nodes: ids of the nodes, ascending; N of them.
        hosts: for each worker the number of its host; W of them.
        names: names of the hosts, by number; none: the numbers stand for them.

    Raises:
        ConfigError: the sizes do not fit, a latency is negative, or a rate is not above 0.
    """

    rows: tuple[tuple[Link, ...], ...]
    nodes: tuple[int, ...]
    hosts: tuple[int, ...]
    names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        sizes = {len(row) for row in self.rows}
        if not self.rows or sizes != {len(self.nodes)} or len(self.hosts) != len(self.rows):
            raise ConfigError(
                "links are one row for each worker, with one link for each memory node",
                workers=len(self.rows),
                hosts=len(self.hosts),
                nodes=len(self.nodes),
            )
        for rank, row in enumerate(self.rows):
            for node, link in zip(self.nodes, row, strict=True):
                _check(link, rank, node)

    @classmethod
    def from_array(
        cls, array: NDArray[np.float64], nodes: Sequence[int], names: Sequence[str] = ()
    ) -> Self:
        """Read ``f64[W, N, COLUMNS]``, as ``as_array`` returns it."""
        rows = [
            tuple(
                Link(latency_s, put_rate, get_rate, is_local=bool(is_local))
                for latency_s, put_rate, get_rate, is_local, _ in row
            )
            for row in array.tolist()
        ]
        hosts = tuple(int(each) for each in array[:, 0, 4])
        return cls(tuple(rows), tuple(nodes), hosts, tuple(names))

    def as_array(self) -> NDArray[np.float64]:
        """Return the links as ``f64[W, N, COLUMNS]``."""
        return np.array(
            [
                [[*astuple(link), host] for link in row]
                for row, host in zip(self.rows, self.hosts, strict=True)
            ],
            np.float64,
        )

    def name_of(self, rank: int) -> str:
        """Return the name of a worker's host."""
        host = self.hosts[rank]
        return self.names[host] if self.names else f"host {host}"

    def distances(self, nbytes: float) -> NDArray[np.float64]:
        """Predict how long two workers take to exchange ``nbytes`` through the best node.

        Each puts and gets them; the slower one counts. Of one host: 0, they share memory.

        Returns:
            Seconds, ``f64[W, W]``.
        """
        both = np.array(
            [[each.put_s(nbytes) + each.get_s(nbytes) for each in row] for row in self.rows]
        )
        found = np.full((len(both), len(both)), np.inf)
        for column in both.T:  # one node
            np.minimum(found, np.maximum(column[:, None], column[None, :]), out=found)
        hosts = np.array(self.hosts)
        found[hosts[:, None] == hosts[None, :]] = 0.0
        return found


def _check(link: Link, rank: int, node: int) -> None:
    rates = (link.put_rate, link.get_rate)
    is_sound = all(math.isfinite(rate) and rate > 0.0 for rate in rates)
    if not is_sound or not math.isfinite(link.latency_s) or link.latency_s < 0.0:
        raise ConfigError(
            "a link has rates above 0 and a latency of at least 0",
            rank=rank,
            node=node,
            link=astuple(link),
        )

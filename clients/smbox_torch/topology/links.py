"""Links from workers to memory nodes: latency, and rate each way. Pure.

Workers do not communicate directly: they put to a memory node and get from it. So a link
connects a worker to a node, and two workers exchange data through the node that is best for the
slower one.
W workers, N nodes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from itertools import pairwise
from numbers import Real
from typing import Final, Self

import numpy as np
from numpy.typing import NDArray

from smbox.errors import ConfigError
from smbox_torch.checks import whole

__all__ = ["COLUMNS", "Link", "Links"]

COLUMNS: Final = 5
"""Number of columns of a link in an array: the fields of Link and the worker's host."""
IS_LOCAL, HOST = 3, 4
"""Columns of an array: Link.is_local, and the number of the worker's host."""

LATENCY_MAX_S: Final = 1e9
RATE_MIN: Final = 1e-6
RATE_MAX: Final = 1e18
"""Limits beyond all real networks, so that sums and ratios of predicted seconds are finite."""


@dataclass(frozen=True, slots=True)
class Link:
    """The link from one worker to one memory node.

    Args:
        latency_s: seconds of a round trip that reads one byte; 0 to LATENCY_MAX_S.
        put_rate: bytes per second of a put; RATE_MIN to RATE_MAX.
        get_rate: bytes per second of a get; RATE_MIN to RATE_MAX.
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
        hosts: the number of each worker's host; W of them.
        names: names of the hosts, by number; empty: the numbers are used as names.

    Raises:
        ConfigError: the sizes do not fit, there are no nodes or their ids do not
            ascend, a latency is negative or above LATENCY_MAX_S, or a rate is not from RATE_MIN
            to RATE_MAX; the message names the argument, the facts name worker and node.
        TypeError: an argument has a wrong type.
    """

    rows: tuple[tuple[Link, ...], ...]
    nodes: tuple[int, ...]
    hosts: tuple[int, ...]
    names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _check_shapes(self)
        _check_numbers(self.nodes, self.hosts)
        if self.names and len(self.names) <= max(self.hosts):
            raise ConfigError(
                "names must have one name for each number in hosts",
                names=self.names,
                hosts=self.hosts,
            )
        for rank, row in enumerate(self.rows):
            for node, link in zip(self.nodes, row, strict=True):
                _check(link, rank, node)

    @classmethod
    def from_array(
        cls, array: NDArray[np.float64], nodes: Sequence[int], names: Sequence[str] = ()
    ) -> Self:
        """Create links from ``f64[W, N, COLUMNS]``, the result of ``as_array``.

        Raises:
            ConfigError: the array has another shape, or its values are not valid.
        """
        found = np.asarray(array)
        if found.shape[1:] != (len(nodes), COLUMNS) or not found.size:
            raise ConfigError(
                f"array needs one row for each worker, one link for each node, and {COLUMNS}"
                " numbers for each link",
                shape=found.shape,
                nodes=len(nodes),
            )
        if not np.isfinite(found[:, 0, HOST]).all():
            raise ConfigError("array must have a finite number for each worker's host")
        rows = [
            tuple(
                Link(latency_s, put_rate, get_rate, is_local=bool(is_local))
                for latency_s, put_rate, get_rate, is_local, _ in row
            )
            for row in found.tolist()
        ]
        hosts = tuple(int(each) for each in found[:, 0, HOST])
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

    def distances(self, nbytes: int) -> NDArray[np.float64]:
        """Predict how long two workers take to exchange ``nbytes`` through the best node.

        Both put and get ``nbytes``; the slower one counts. On one host it is 0: they share
        memory.

        Returns:
            Seconds, ``f64[W, W]``.

        Raises:
            ConfigError, TypeError: ``nbytes`` is not an integer from 1 to 2 ** 63 - 1.
        """
        nbytes = whole("nbytes", nbytes)
        both = np.array(
            [[each.put_s(nbytes) + each.get_s(nbytes) for each in row] for row in self.rows]
        )
        found = np.full((len(both), len(both)), np.inf)
        for column in both.T:  # one node
            np.minimum(found, np.maximum(column[:, None], column[None, :]), out=found)
        hosts = np.array(self.hosts)
        found[hosts[:, None] == hosts[None, :]] = 0.0
        return found


def _check_shapes(links: Links) -> None:
    """Check that there is a link from each worker to each node."""
    try:
        sizes = {len(row) for row in links.rows}
        counts = {
            "workers": len(links.rows),
            "hosts": len(links.hosts),
            "nodes": len(links.nodes),
        }
    except TypeError:
        raise TypeError(
            "rows must be a tuple of tuples, and nodes and hosts must be tuples"
        ) from None
    if not links.nodes or sizes != {len(links.nodes)} or len(links.hosts) != len(links.rows):
        raise ConfigError(
            "rows must have one row for each worker, with one link for each memory node, and"
            " hosts one number for each worker; at least one worker and one node are needed",
            **counts,
        )


def _check_numbers(nodes: Sequence[int], hosts: Sequence[int]) -> None:
    for node in nodes:
        whole("nodes", node, least=0)
    for host in hosts:
        whole("hosts", host, least=0)
    if any(after <= before for before, after in pairwise(nodes)):
        raise ConfigError("nodes must be ascending ids without duplicates", nodes=tuple(nodes))


def _check(link: Link, rank: int, node: int) -> None:
    if not isinstance(link, Link):
        raise TypeError(f"rows must contain Links, not {type(link).__name__}")
    limits = {
        "latency_s": (0.0, LATENCY_MAX_S),
        "put_rate": (RATE_MIN, RATE_MAX),
        "get_rate": (RATE_MIN, RATE_MAX),
    }
    for name, (least, most) in limits.items():
        value = _real(name, getattr(link, name))
        if not least <= value <= most:  # also false for NaN
            raise ConfigError(
                f"{name} of a link must be from {least:g} to {most:g}",
                rank=rank,
                node=node,
                **{name: value},
            )


def _real(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{name} of a link must be a number, not {type(value).__name__}")
    try:
        return float(value)
    except OverflowError:  # an int of hundreds of digits
        return math.inf

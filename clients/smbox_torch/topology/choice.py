"""The choice of groups: hosts with links of the same class step together. Pure.

The workers of a host always step together: they share memory. Hosts are then joined, the two
nearest first, by complete linkage: the distance of two clusters is the slowest pair of workers
in both, since a mean waits for the slowest (Defays 1977 has the method). The cut is at the
largest gap: the largest ratio between the distances of two consecutive joins. Without a ratio
of ``GAP`` all links are of one kind, and the hosts stay as they are. Groups that are predicted
to take no less time than one group of all are dropped for that one.

Time cannot decide all: an exchange every ``period`` steps always costs less than a mean in
every step, so the least time has no groups at all. The gap says where a mean is cheap.

All workers compute the same from the same links; equal links are joined by rank.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Final

import numpy as np

from smbox_torch.checks import whole
from smbox_torch.topology.hierarchy import Cut, Group, Topology
from smbox_torch.topology.links import Links
from smbox_torch.topology.prediction import exchange_s, mean_s, move_s

__all__ = ["choose"]

GAP: Final = 2.0
"""A link that takes less than twice as long as another is of the same kind: measurements of
one link beside other traffic differ by as much."""

ONE: Final = "; but one group of all is predicted to take no longer, so there is one group"

Clusters = tuple[tuple[int, ...], ...]


def choose(links: Links, *, nbytes: int, period: int = 10) -> Topology:
    """Choose groups, roots and the nodes that hold what.

    Args:
        links: of all workers.
        nbytes: of the model, as it is exchanged.
        period: steps between two exchanges with the center; for the predictions.

    Raises:
        ConfigError: nbytes or period is not from 1 to 2 ** 63 - 1.
        TypeError: one of them is no whole number, or ``links`` are no Links.
    """
    if not isinstance(links, Links):
        raise TypeError(f"links are Links, not {type(links).__name__}")
    nbytes, period = whole("nbytes", nbytes), whole("period", period)
    levels, joins_s = _dendrogram(links, nbytes)
    gaps = [after / before for before, after in pairwise(joins_s)]
    gap = max(gaps, default=1.0)
    level = gaps.index(gap) + 1 if gap >= GAP else 0
    shown = dict.fromkeys((levels[0], levels[level], levels[-1]))
    cuts = {clusters: _cut(links, clusters, nbytes, period) for clusters in shown}
    mine, one = cuts[levels[level]], cuts[levels[-1]]
    is_one = level > 0 and one.step_s <= mine.step_s
    return Topology(
        links=links,
        chosen=one if is_one else mine,
        cuts=tuple(cuts.values()),
        gap=gap if level else 1.0,
        nbytes=nbytes,
        period=period,
        reason=_reason(joins_s, level, gap) + (ONE if is_one else ""),
    )


def _reason(joins_s: Sequence[float], level: int, gap: float) -> str:
    if not joins_s:
        return "one group: all workers share the memory of one host"
    if not level:
        return (
            f"each host is a group: no gap of {GAP:g} or more between the links of the hosts"
            f" (largest ratio {gap:.2f})"
        )
    slow, fast = joins_s[level], joins_s[level - 1]
    return (
        f"the groups are joined by links of {fast * 1e3:.1f} ms or less for the model, there"
        f" and back; the next slower link takes {slow * 1e3:.1f} ms, {gap:.1f} times as long"
    )


def _dendrogram(links: Links, nbytes: int) -> tuple[list[Clusters], list[float]]:
    """Return the clusters before each join and after the last, and the joins' seconds."""
    pairs = links.distances(nbytes)
    clusters = [_of_host(links, host) for host in dict.fromkeys(links.hosts)]
    far = np.array([[pairs[np.ix_(a, b)].max() for b in clusters] for a in clusters])
    np.fill_diagonal(far, np.inf)
    levels, joins_s = [_sorted(clusters)], []
    while len(clusters) > 1:
        first, second = (int(each) for each in np.unravel_index(far.argmin(), far.shape))
        joins_s.append(float(far[first, second]))
        clusters[first] = tuple(sorted(clusters[first] + clusters.pop(second)))
        far[first] = far[:, first] = np.maximum(far[first], far[second])
        far = np.delete(np.delete(far, second, axis=0), second, axis=1)
        far[first, first] = np.inf
        levels.append(_sorted(clusters))
    return levels, joins_s


def _of_host(links: Links, host: int) -> tuple[int, ...]:
    return tuple(rank for rank, found in enumerate(links.hosts) if found == host)


def _sorted(clusters: Sequence[tuple[int, ...]]) -> Clusters:
    return tuple(sorted(clusters))


def _cut(links: Links, clusters: Clusters, nbytes: int, period: int) -> Cut:
    """Give each group its node and root, and the center its node; the cheapest of each."""
    nodes = range(len(links.nodes))
    homes = [
        min(nodes, key=lambda node: (mean_s(links, each, node, nbytes), node))
        for each in clusters
    ]
    center = min(
        nodes, key=lambda node: (_center_s(links, clusters, homes, node, nbytes), node)
    )
    ordered = [_root_first(links, each, center, nbytes) for each in clusters]
    mean = [
        mean_s(links, each, home, nbytes) for each, home in zip(ordered, homes, strict=True)
    ]
    moved = [
        move_s(links, each, home, nbytes) for each, home in zip(ordered, homes, strict=True)
    ]
    exchanged = exchange_s(links, [each[0] for each in ordered], center, nbytes)
    shared = [exchanged + move for move in moved]
    return Cut(
        groups=tuple(
            Group(each, links.nodes[home] if _spans_hosts(links, each) else None)
            for each, home in zip(ordered, homes, strict=True)
        ),
        center=links.nodes[center],
        mean_s=max(mean),
        exchange_s=max(shared),
        step_s=max(a + b / period for a, b in zip(mean, shared, strict=True)),
    )


def _center_s(
    links: Links, clusters: Clusters, homes: Sequence[int], center: int, nbytes: int
) -> tuple[float, float]:
    """Return what an exchange costs with the center there: the slowest group, then the sum."""
    ordered = [_root_first(links, each, center, nbytes) for each in clusters]
    roots = [each[0] for each in ordered]
    moves = [
        move_s(links, each, home, nbytes) for each, home in zip(ordered, homes, strict=True)
    ]
    alone = [_alone_s(links, root, center, nbytes) for root in roots]
    return exchange_s(links, roots, center, nbytes) + max(moves), math.fsum(alone)


def _root_first(
    links: Links, members: tuple[int, ...], center: int, nbytes: int
) -> tuple[int, ...]:
    """Put the member with the best link to the center first; of one host its lowest rank.

    The ranks of a host have one link, and their shared memory is made by the first of them.
    """
    if not _spans_hosts(links, members):
        return members
    root = min(members, key=lambda rank: (_alone_s(links, rank, center, nbytes), rank))
    return (root, *(rank for rank in members if rank != root))


def _alone_s(links: Links, rank: int, center: int, nbytes: int) -> float:
    link = links.rows[rank][center]
    return max(link.put_s(nbytes), link.get_s(nbytes))


def _spans_hosts(links: Links, members: Sequence[int]) -> bool:
    return len({links.hosts[rank] for rank in members}) > 1

"""The choice of groups: hosts whose links have similar speeds form one group. Pure.

The workers of one host share memory and are always in one group. Complete-linkage clustering
(Defays 1977) then joins hosts, the nearest first. The distance of two clusters is that of the
slowest pair of workers in both, because a mean waits for the slowest worker. The dendrogram is
cut at the largest gap, which is the largest ratio between the distances of two consecutive
joins. If no ratio reaches ``GAP``, all links are of one kind and each host is a group. If the
groups are not predicted to be faster than a single group of all workers, that group is used.

Predicted time alone cannot decide: an exchange every ``period`` steps always costs less than a
mean in every step, so the least time is reached without groups. The gap shows where a mean is
cheap.

All workers compute the same result from the same links; ties are broken by rank.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Final

import numpy as np

from smbox.errors import ConfigError
from smbox_torch.checks import whole
from smbox_torch.topology.hierarchy import Cut, Group, Topology
from smbox_torch.topology.links import Links
from smbox_torch.topology.prediction import exchange_s, is_on_one_host, mean_s, move_s

__all__ = ["choose"]

GAP: Final = 2.0
"""Links whose times differ by less than this factor are of the same kind: repeated measurements
of one link under other traffic differ as much."""

ONE: Final = "; but one group of all is predicted to take no longer, so there is one group"

Clusters = tuple[tuple[int, ...], ...]


def choose(
    links: Links, *, nbytes: int, period: int = 10, center: int | None = None
) -> Topology:
    """Choose the groups, their roots, and the memory nodes of their sums and of the center.

    Args:
        links: links of all workers.
        nbytes: bytes of the model in one direction of an exchange.
        period: steps between two exchanges with the center; for the predictions.
        center: id of the node that has the center already; None: choose the node.

    Raises:
        ConfigError: nbytes or period is not from 1 to 2 ** 63 - 1, or there is no such node.
        TypeError: one of them is not an integer, or ``links`` is not a Links.
    """
    if not isinstance(links, Links):
        raise TypeError(f"links must be a Links, not {type(links).__name__}")
    nbytes, period = whole("nbytes", nbytes), whole("period", period)
    if center not in {None, *links.nodes}:
        raise ConfigError("center must be the id of a node", center=center, nodes=links.nodes)
    levels, joins_s = _dendrogram(links, nbytes)
    gaps = [after / before for before, after in pairwise(joins_s)]
    gap = max(gaps, default=1.0)
    level = gaps.index(gap) + 1 if gap >= GAP else 0
    shown = dict.fromkeys((levels[0], levels[level], levels[-1]))
    cuts = {clusters: _cut(links, clusters, nbytes, period, center) for clusters in shown}
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
    """Return the clusters before each join and after the last, and the seconds of the joins."""
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


def _cut(links: Links, clusters: Clusters, nbytes: int, period: int, given: int | None) -> Cut:
    """Select the cheapest node and root of each group, and the given or cheapest center."""
    nodes = range(len(links.nodes))
    homes = [
        min(nodes, key=lambda node: (mean_s(links, each, node, nbytes), node))
        for each in clusters
    ]
    centers = nodes if given is None else [links.nodes.index(given)]
    center = min(
        centers, key=lambda node: (_center_s(links, clusters, homes, node, nbytes), node)
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
            Group(each, None if is_on_one_host(links, each) else links.nodes[home])
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
    """Return the cost of a node for the center: seconds of the slowest group, and their sum."""
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
    """Put the member with the best link to the center first; on a host, the lowest rank.

    The ranks of a host share one link, and the first of them creates their shared memory.
    """
    if is_on_one_host(links, members):
        return members
    root = min(members, key=lambda rank: (_alone_s(links, rank, center, nbytes), rank))
    return (root, *(rank for rank in members if rank != root))


def _alone_s(links: Links, rank: int, center: int, nbytes: int) -> float:
    link = links.rows[rank][center]
    return max(link.put_s(nbytes), link.get_s(nbytes))

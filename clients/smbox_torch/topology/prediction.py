"""The predicted communication time of a step, from measured links. Pure.

S bytes of the model. A group on one host costs nothing, because it computes its mean in the
memory of the host. A group over several hosts computes its mean at a memory node:

    mean       every worker puts S; when all have, every worker gets S
    exchange   the root exchanges S with the center, both directions at once
    move       the root puts S to the group's node, the other workers get S
    step       the slowest group's  mean + (exchange + move) / period

Concurrent transfers share links: the workers of one host share the host's link, and all workers
share the memory node's link, whose rate is that of the best link to the node.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence

from smbox_torch.topology.links import Link, Links

__all__ = ["exchange_s", "is_on_one_host", "mean_s", "move_s"]

Seconds = Callable[[Link], float]


def mean_s(links: Links, members: Sequence[int], node: int, nbytes: float) -> float:
    """Predict the seconds of a mean of ``nbytes`` at a node.

    Args:
        links: links of the run.
        members: ranks of the group.
        node: index of the node in ``links.nodes``.
        nbytes: bytes of the model.
    """
    if is_on_one_host(links, members):
        return 0.0
    put_s = _together_s(links, members, node, lambda link: link.put_s(nbytes))
    return put_s + _together_s(links, members, node, lambda link: link.get_s(nbytes))


def move_s(links: Links, members: Sequence[int], node: int, nbytes: float) -> float:
    """Predict the seconds until the move of the root, ``members[0]``, has reached its group."""
    if is_on_one_host(links, members):
        return 0.0
    put_s = links.rows[members[0]][node].put_s(nbytes)
    return put_s + _together_s(links, members[1:], node, lambda link: link.get_s(nbytes))


def exchange_s(links: Links, roots: Sequence[int], center: int, nbytes: float) -> float:
    """Predict the seconds of an exchange with the center if all roots begin together."""
    return _together_s(
        links, roots, center, lambda link: max(link.put_s(nbytes), link.get_s(nbytes))
    )


def is_on_one_host(links: Links, members: Sequence[int]) -> bool:
    """Return whether all workers of a group share the memory of one host."""
    return len({links.hosts[rank] for rank in members}) == 1


def _together_s(links: Links, members: Sequence[int], node: int, seconds: Seconds) -> float:
    """Return the seconds of concurrent transfers between workers and a node."""
    found = [0.0]
    by_host: defaultdict[int, float] = defaultdict(float)
    far: list[float] = []
    for rank in members:
        link = links.rows[rank][node]
        if link.is_local:
            found.append(seconds(link))
        else:
            by_host[links.hosts[rank]] += seconds(link)
            far.append(seconds(link))
    if far:
        # The best measured link to the node is the limit of the node's own link.
        best = [row[node] for row in links.rows if not row[node].is_local]
        found.append(len(far) * min(seconds(link) for link in best))
    return max(*found, *by_host.values()) if by_host else max(found)

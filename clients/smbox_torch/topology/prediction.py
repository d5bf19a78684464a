"""The predicted communication time of a step, from measured links. Pure.

S bytes of the model. Of a group whose workers share a host nothing is counted: its mean is
made in the memory of the host. A group over several hosts makes its mean at a memory node:

    mean       every worker puts S; when all have, every worker gets S
    exchange   the root exchanges S with the center, both directions at once
    move       the root puts S to the group's node, the other workers get S
    step       the slowest group's  mean + (exchange + move) / period

What goes on at once shares links: the workers of one host that host's, all workers the
memory node's, whose rate is that of the best link to it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence

from smbox_torch.topology.links import Link, Links

__all__ = ["exchange_s", "mean_s", "move_s"]

Seconds = Callable[[Link], float]


def mean_s(links: Links, members: Sequence[int], node: int, nbytes: float) -> float:
    """Predict the seconds of a mean of ``nbytes`` at a node.

    Args:
        links: of the run.
        members: ranks of the group.
        node: the node's place in ``links.nodes``.
        nbytes: of the model.
    """
    if _is_on_one_host(links, members):
        return 0.0
    put_s = _together_s(links, members, node, lambda link: link.put_s(nbytes))
    return put_s + _together_s(links, members, node, lambda link: link.get_s(nbytes))


def move_s(links: Links, members: Sequence[int], node: int, nbytes: float) -> float:
    """Predict the seconds until the root's move has reached its group; the root comes first."""
    if _is_on_one_host(links, members):
        return 0.0
    put_s = links.rows[members[0]][node].put_s(nbytes)
    return put_s + _together_s(links, members[1:], node, lambda link: link.get_s(nbytes))


def exchange_s(links: Links, roots: Sequence[int], center: int, nbytes: float) -> float:
    """Predict the seconds of an exchange with the center, if all roots begin at once."""
    return _together_s(
        links, roots, center, lambda link: max(link.put_s(nbytes), link.get_s(nbytes))
    )


def _is_on_one_host(links: Links, members: Sequence[int]) -> bool:
    return len({links.hosts[rank] for rank in members}) == 1


def _together_s(links: Links, members: Sequence[int], node: int, seconds: Seconds) -> float:
    """Return the seconds of transfers between workers and a node that begin at once."""
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
        # The node's own network moves nothing faster than the best link to it has shown.
        best = [row[node] for row in links.rows if not row[node].is_local]
        found.append(len(far) * min(seconds(link) for link in best))
    return max(*found, *by_host.values()) if by_host else max(found)

"""Where regions go: the node of a name, and the rows of each part. Pure.

A name's node is found by rendezvous hashing (Thaler and Ravishankar 1998) over the node ids:
neither the order nor the spelling of addresses matters, and all clients that connect to the
same nodes agree without asking anybody.
"""

from __future__ import annotations

from collections.abc import Collection
from hashlib import blake2b
from itertools import pairwise


def home_of(name: str, ids: Collection[int]) -> int:
    """Return the id of the node that a name belongs to.

    Another node in the set takes over only the names that it then wins.

    Args:
        name: of a region, counter, barrier, lock or run.
        ids: of all nodes; at least one.
    """
    return max(ids, key=lambda node: (_weight(node, name), node))


def _weight(node: int, name: str) -> bytes:
    return blake2b(f"{node}:{name}".encode(errors="surrogatepass"), digest_size=8).digest()


def cut(rows: int, count: int) -> list[tuple[int, int]]:
    """Cut rows into at most ``count`` consecutive parts, as even as whole rows allow.

    Returns:
        First and limit row of each part; none is empty, but for the only part of no rows.
    """
    parts = max(1, min(rows, count))
    each, longer = divmod(rows, parts)
    firsts = [part * each + min(part, longer) for part in range(parts + 1)]
    return list(pairwise(firsts))

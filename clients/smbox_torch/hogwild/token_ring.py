"""A token that clusters of workers pass around, in words that all of them map.

Only the cluster that has the token writes it, so it needs no lock and no atomic instruction.
Nobody waits for it: a worker looks whether the token has come, and goes on if it has not.
A cluster whose leader left or died is passed over: its token belongs to the next one.

    word 0               the cluster that has the token
    words 1 + 2 c, ...   pid and start time of cluster c's leader; zeros until it comes
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

from numpy.typing import NDArray

from smbox.errors import ConfigError
from smbox.memory import process

__all__ = ["TokenRing", "ring_words"]

LEFT: Final = -1  # in place of a pid
LOOK_S: Final = 0.25  # between two looks at the others' processes


def ring_words(clusters: int) -> int:
    """Return how many int64 words a ring of so many clusters takes."""
    return 1 + 2 * clusters


class TokenRing:
    """One cluster's place in the ring, seen by its leader.

    Args:
        words: ``i64[ring_words(clusters)]`` in shared memory, zeros at first: cluster 0
            begins with the token.
        cluster: number of this one.
        clusters: how many there are.
        clock: seconds that only grow.
    """

    def __init__(
        self,
        words: NDArray[Any],
        cluster: int,
        clusters: int,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if not 0 <= cluster < clusters:
            raise ConfigError("clusters are numbered from 0", cluster=cluster, of=clusters)
        self.cluster, self.clusters = cluster, clusters
        self._words = words
        self._leaders = words[1 : ring_words(clusters)].reshape(clusters, 2)
        self._clock = clock
        self._look_s = clock()
        pid, pid_started = process.identity()
        self._leaders[cluster] = (0, pid_started)
        self._leaders[cluster, 0] = pid

    @property
    def holder(self) -> int:
        """The cluster that has the token, or had it when it went away."""
        return int(self._words[0])

    @property
    def following(self) -> int:
        """The next cluster, which this one exchanges with and passes the token to."""
        return (self.cluster + 1) % self.clusters

    def has_token(self) -> bool:
        """Tell whether the token has come here; it stays until it is passed on."""
        holder = self.holder
        if holder == self.cluster:
            return True
        gone = range(holder, holder + (self.cluster - holder) % self.clusters)
        if not all(self._is_gone(each % self.clusters) for each in gone):
            return False
        self._words[0] = self.cluster
        return True

    def _is_gone(self, cluster: int) -> bool:
        """Tell whether a leader left or died; the dead are looked for every LOOK_S."""
        pid, pid_started = (int(word) for word in self._leaders[cluster])
        if pid == LEFT:
            return True
        now_s = self._clock()
        if pid == 0 or now_s < self._look_s + LOOK_S:
            return False
        self._look_s = now_s
        if process.is_alive(pid, pid_started):
            return False
        self._leaders[cluster, 0] = LEFT
        return True

    def pass_on(self) -> None:
        """Give the token to the next cluster."""
        self._words[0] = self.following

    def leave(self) -> None:
        """Go away; a token that is here, or comes, is the next one's."""
        self._leaders[self.cluster, 0] = LEFT

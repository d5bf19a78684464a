"""A token that clusters of workers pass around a ring, in shared memory.

Only the cluster that has the token writes the word, and only a leader the words of its cluster,
so neither needs a lock or an atomic instruction. A worker never waits for the token: it tests
whether it has the token, and continues if not. A cluster whose leader left or died is skipped:
its token belongs to the next cluster.

    word 0               the cluster that has the token
    words 1 + 2 c, ...   pid and start time of cluster c's leader; zeros until it joins
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

from numpy.typing import NDArray

from smbox.errors import ConfigError, SystemLimitError
from smbox.memory import process

__all__ = ["TokenRing", "ring_words"]

LEFT: Final = -1  # in place of a pid
POLL_S: Final = 0.25  # interval between two checks of the other leaders' processes


def ring_words(clusters: int) -> int:
    """Return the number of int64 words of a ring with this number of clusters."""
    return 1 + 2 * clusters


class TokenRing:
    """The ring as used by the leader of one cluster.

    Args:
        words: ``i64[ring_words(clusters)]`` in shared memory, initially zeros: cluster 0 has
            the token first.
        cluster: number of this cluster, from 0.
        clusters: number of clusters.
        clock: monotonic clock, in seconds.
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
        self._polled_s = clock()
        self._dead: set[tuple[int, int]] = set()
        self._own = pid, pid_started = process.identity()
        self._leaders[cluster] = (0, pid_started)
        self._leaders[cluster, 0] = pid

    @property
    def holder(self) -> int:
        """The cluster that has the token, or had it when its leader left."""
        return int(self._words[0])

    @property
    def following(self) -> int:
        """The next cluster, with which this one exchanges and to which it passes the token."""
        return (self.cluster + 1) % self.clusters

    def has_token(self) -> bool:
        """Return whether this cluster has the token; it keeps it until :meth:`pass_on`.

        A leader that was replaced does not have it.
        """
        if not self._leads():
            return False
        holder = self.holder
        if holder == self.cluster:
            return True
        gone = range(holder, holder + (self.cluster - holder) % self.clusters)
        if not all(self._is_gone(each % self.clusters) for each in gone):
            return False
        self._words[0] = self.cluster
        return True

    def _is_gone(self, cluster: int) -> bool:
        """Return whether a leader left or died; processes are checked every POLL_S."""
        pid, pid_started = self._leader(cluster)
        if pid == LEFT or (pid, pid_started) in self._dead:
            return True
        now_s = self._clock()
        if pid == 0 or now_s < self._polled_s + POLL_S:
            return False
        self._polled_s = now_s
        try:
            if process.is_alive(pid, pid_started):
                return False
        except SystemLimitError:  # not known now; the worker's step was done before
            return False
        self._dead.add((pid, pid_started))
        return True

    def pass_on(self) -> None:
        """Pass the token to the next cluster."""
        self._words[0] = self.following

    def leave(self) -> None:
        """Leave the ring; from then on the token skips this cluster, unless it was replaced."""
        if self._leads():
            self._leaders[self.cluster, 0] = LEFT

    def _leads(self) -> bool:
        """Return whether no other process has become the leader of this cluster."""
        return self._leader(self.cluster) == self._own

    def _leader(self, cluster: int) -> tuple[int, int]:
        """Return pid and start time of a cluster's leader; containers may share a pid."""
        pid, pid_started = self._leaders[cluster].tolist()
        return pid, pid_started

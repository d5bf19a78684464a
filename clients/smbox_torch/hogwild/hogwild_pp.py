"""HogWild++: clusters of Hogwild workers, each with its own model, in a ring with one token.

Zhang, Hsieh, Akella: HogWild++: a new mechanism for decentralized asynchronous stochastic
gradient descent, ICDM 2016, and its code (huanzhang12/hogwildpp). n clusters; w the model of
the cluster that has the token, v that of the next cluster, u the value of w at its last
exchange:

    every step:               w = w - lr * g_i                    (Hogwild inside the cluster)
    when the token comes:     d = w - u
        where |d| > tolerance:    w' = lambda v + (1 - lambda) w + (beta + lambda - 1) d
                                  v' = v + beta d;    u' = w'
        elsewhere:                w' = lambda v + (1 - lambda) w + lambda d
                                  u' = w' - d                    (d is held back for later)
    update_delay steps later: the token goes to the next cluster

    beta^n + beta - 1 = 0,    lambda = 1 - beta^(n - 1)

so that after one pass around the ring a step has the same weight in every cluster. Workers of a
cluster should share a cache (one socket). Then writes reach another socket only with the token,
while in Hogwild every step of every core invalidates cache lines of all other cores.

With ``model=`` the batch-norm statistics, r of the holder and q of the next cluster, are
averaged, because they are not sums of steps: r' = q' = (r + q) / 2. Batch counts become the
larger of both.

Variant: w' - w is added to w, so that concurrent steps of the cluster's other workers stay in w
and in its next d; the paper's code overwrites them.
"""

from __future__ import annotations

import time
from typing import Any, Final, Literal

import torch

from smbox.box import Box
from smbox.errors import ConfigError
from smbox_torch.adapter import as_array
from smbox_torch.checks import real, whole
from smbox_torch.hogwild.hogwild import Hogwild
from smbox_torch.hogwild.model import ModelTensors
from smbox_torch.hogwild.state import share
from smbox_torch.hogwild.token_ring import TokenRing, ring_words
from smbox_torch.optimizer.checkpoint import is_plain
from smbox_torch.workers.joining import LEASE_S
from smbox_torch.workers.phase import Phase
from smbox_torch.world import World, world_or_launched

__all__ = ["HogwildPP", "default_update_delay", "ring_weights"]

TOLERANCE: Final = 1e-3
"""Measured with a small network (docs/algorithms/hogwild_pp.md). The paper's code has 1e-2,
for a linear SVM."""
DELAYS: Final = ((4, 64), (10, 16))  # up to so many clusters, so many steps; else 4


def ring_weights(clusters: int) -> tuple[float, float]:
    """Return beta and lambda: beta^n + beta - 1 = 0 and lambda = 1 - beta^(n - 1)."""
    low, high = 0.0, 1.0
    for _ in range(60):  # halves the interval each time: a double has 53 bits
        beta = (low + high) / 2
        low, high = (beta, high) if beta**clusters + beta < 1.0 else (low, beta)
    return low, 1.0 - low ** (clusters - 1)


def default_update_delay(clusters: int) -> int:
    """Return the number of steps for which a cluster keeps the token, as the paper's code."""
    return next((delay for most, delay in DELAYS if clusters <= most), 4)


class HogwildPP(Hogwild):
    """Hogwild in clusters of workers, with one model per cluster and exchanges by a token ring.

    The values of the first worker initialize the models of all clusters. The first worker of a
    cluster is its leader: it exchanges with the next cluster when it has the token, unless no
    worker of that cluster has stepped yet. If a leader left or died, its cluster continues
    alone, and the token skips it.

    Args:
        optimizer: the inner optimizer; it does the steps in place. Its parameters must be on
            the CPU.
        box: the box of a memory node on this host.
        name: name of the run; the prefix of the regions.
        clusters: number of clusters, n; the workers are split evenly, in order of rank.
        tolerance: changes of an element up to this size are held back until they are larger.
        update_delay: steps of the leader for which a cluster keeps the token after the
            exchange; None: 64 with up to 4 clusters, 16 with up to 10, else 4.
        state: optimizer state per cluster ("shared") or per worker ("private").
        model: share the buffers of this model in the cluster, see Hogwild, and average them
            between clusters.
        lease_s: see Hogwild.
        world: rank and size of this process; None: as set by the launcher.

    Raises:
        ConfigError: as Hogwild; rank and size of this process are unknown; or there are more
            clusters than workers.
        LayoutMismatchError: another model, or another number of clusters, uses this name.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        box: Box,
        name: str,
        *,
        clusters: int,
        tolerance: float = TOLERANCE,
        update_delay: int | None = None,
        state: Literal["shared", "private"] = "private",
        model: torch.nn.Module | None = None,
        lease_s: float = LEASE_S,
        world: World | None = None,
    ) -> None:
        world = world_or_launched(world)
        clusters = whole("clusters", clusters, most=world.world_size)
        tolerance = real("tolerance", tolerance)
        if tolerance < 0:
            raise ConfigError("tolerance must be at least 0", tolerance=tolerance)
        if update_delay is not None:
            update_delay = whole("update_delay", update_delay, least=0)
        self.clusters = clusters
        self.cluster = _cluster_of(world.rank, clusters, world)
        self.tolerance = tolerance
        self.beta, self.lambda_ = ring_weights(clusters)
        self.update_delay = (
            default_update_delay(clusters) if update_delay is None else update_delay
        )
        self._models: list[ModelTensors] = []
        super().__init__(optimizer, box, name, state=state, model=model, lease_s=lease_s)
        leads = world.rank == 0 or _cluster_of(world.rank - 1, clusters, world) < self.cluster
        zeros = torch.zeros(ring_words(clusters), dtype=torch.int64, device="cpu")
        (words,) = share(box, f"{name}.ring", [zeros])
        self._words = words
        self._following_phase = Phase(box, _name_of(name, (self.cluster + 1) % clusters))
        self._old = [torch.clone(weights) for weights in self._views.parameters]
        self._keep = -1  # steps until the token is passed on; -1: no exchange with it yet
        # The last step of the constructor: the others expect this leader to pass the token on.
        self._ring = TokenRing(as_array(words), self.cluster, clusters) if leads else None

    def _own_name(self, name: str) -> str:
        """Return the name of the cluster."""
        return _name_of(name, self.cluster)

    def _map(self, box: Box, name: str) -> ModelTensors:
        """Create or map the models of all clusters, with the first worker's values."""
        self._models = self._tensors.views(box, name, self.clusters)
        return self._models[self.cluster]

    def _advance(self) -> None:
        super()._advance()
        if self._ring is None or self.clusters == 1 or not self._ring.has_token():
            return
        if self._keep < 0:
            if self._following_phase.is_in_use():  # else it may yet be restored
                self._exchange(self._ring.following)
            self._keep = self.update_delay + 1
        self._keep -= 1
        if self._keep == 0:
            self._keep = -1
            self._ring.pass_on()

    def _exchange(self, following: int) -> None:
        """Move this cluster's model and the next one's towards each other."""
        began_s = time.monotonic()
        mine, theirs = self._views, self._models[following]
        for w, v, u in zip(mine.parameters, theirs.parameters, self._old, strict=True):
            exchange(w, v, u, beta=self.beta, lambda_=self.lambda_, tolerance=self.tolerance)
        for r, q in zip(mine.statistics, theirs.statistics, strict=True):
            q.copy_(r.lerp_(q, 0.5))  # between the two, whatever others store meanwhile
        for n, m in zip(mine.counts, theirs.counts, strict=True):
            m.copy_(torch.maximum(n, m, out=n))
        nbytes = 2 * sum(tensor.nbytes for tensor in mine.every)
        took_s = time.monotonic() - began_s
        self._recorder.exchange(took_s=took_s, nbytes=nbytes)
        self._recorder.waited(took_s)

    def _evaluated_center(self) -> ModelTensors:
        """Return the values to evaluate: the model of the cluster that has the token."""
        return self._models[int(self._words[0])]

    def _take_center(self) -> None:
        """Copy the values to evaluate into the model, as private tensors."""
        best = self._evaluated_center().every
        self._detach()
        for tensor, values in zip(self._views.every, best, strict=True):
            tensor.copy_(values)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Resume from a state that :meth:`state_dict` returned; see Hogwild.

        Every cluster continues from the state that its own first worker loads, if none of its
        workers has stepped.
        """
        super().load_state_dict(state_dict)
        if is_plain(state_dict) or self._has_begun:  # nothing was restored
            return
        for old, weights in zip(self._old, self._views.parameters, strict=True):
            old.copy_(weights)

    def _end(self) -> None:
        """Make the token skip this cluster."""
        if self._ring is not None:
            self._ring.leave()


def _name_of(name: str, cluster: int) -> str:
    """Return the name under which the workers of a cluster share its state and phase."""
    return f"{name}.cluster{cluster}"


def _cluster_of(rank: int, clusters: int, world: World) -> int:
    return rank * clusters // world.world_size


def exchange(
    w: torch.Tensor,
    v: torch.Tensor,
    u: torch.Tensor,
    *,
    beta: float,
    lambda_: float,
    tolerance: float,
) -> None:
    """Exchange a tensor of the holder's model with the next cluster's, in place.

    Args:
        w: tensor of the holder, contiguous; other workers may change it concurrently.
        v: tensor of the next cluster, of the same shape, contiguous; only elements with a
            change above the tolerance are written.
        u: w at the holder's last exchange, minus the changes held back.
        beta: share of a change that is added to the next cluster.
        lambda_: weight of the next cluster in the holder's new value.
        tolerance: changes up to this size are held back.
    """
    read = w.clone()
    d = read - u
    is_moved = d.abs() > tolerance
    move = torch.where(is_moved, (beta + lambda_ - 1) * d, lambda_ * d)
    move += lambda_ * (v - read)
    moved = is_moved.view(-1).nonzero().view(-1)
    v.view(-1).index_add_(0, moved, d.view(-1)[moved], alpha=beta)
    w += move
    torch.sub(read + move, torch.where(is_moved, 0.0, d), out=u)

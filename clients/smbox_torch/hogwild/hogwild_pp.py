"""HogWild++: clusters of Hogwild workers, each with its own model, and one token in their ring.

Zhang, Hsieh, Akella: HogWild++: a new mechanism for decentralized asynchronous stochastic
gradient descent, ICDM 2016, and its code (huanzhang12/hogwildpp). n clusters; w the model of
the cluster that has the token, v the next one's, u what w was at its last exchange:

    every step:               w = w - lr * g_i                    (Hogwild inside the cluster)
    when the token comes:     d = w - u
        where |d| > tolerance:    w' = lambda v + (1 - lambda) w + (beta + lambda - 1) d
                                  v' = v + beta d;    u' = w'
        elsewhere:                w' = lambda v + (1 - lambda) w + lambda d
                                  u' = w' - d                       (d waits for a later turn)
    update_delay steps later: the token goes to the next cluster

    beta^n + beta - 1 = 0,    lambda = 1 - beta^(n - 1)

so that a step, once around the ring, weighs the same in every cluster. Workers of a cluster
should share a cache (one socket): a core then hears of another socket's writes only by the
token, where in Hogwild every step of every core takes cache lines away from all others.

With ``model=`` the statistics of batch norms, r of the holder and q of the next cluster, are no
sums of steps and are averaged: r' = q' = (r + q) / 2. Of batch counts both take the larger.

Variant: w' is added to w as the move w' - w, so steps that the cluster's other workers take
meanwhile stay in w and in its next d, where the paper's code overwrites them.
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
from smbox_torch.workers.claim import claim
from smbox_torch.workers.joining import LEASE_S
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
    """Return how many steps a cluster keeps the token, as the paper's code has it."""
    return next((delay for most, delay in DELAYS if clusters <= most), 4)


class HogwildPP(Hogwild):
    """An optimizer that shares its model with a cluster of workers, and drifts with the others.

    All clusters begin with the model of the worker that comes first. The first worker of a
    cluster is its leader: it exchanges with the next cluster when the token is there. Where a
    leader has left or died, its cluster goes on alone and the token passes it over.

    Args:
        optimizer: does the steps, in place; its parameters must be on the CPU.
        box: of a memory node on this host.
        name: of the run: prefix of the regions.
        clusters: how many there are, n; the workers are split evenly, in order of rank.
        tolerance: smaller moves of an element wait until they have grown.
        update_delay: steps of its leader for which a cluster keeps the token after the
            exchange; None: 64 with up to 4 clusters, 16 with up to 10, else 4.
        state: the optimizer's state: one per cluster ("shared"), or per worker ("private").
        model: share its buffers in the cluster, see Hogwild, and average them with the token.
        lease_s: as of Hogwild.
        world: who this process is; None: as the launcher tells.

    Raises:
        ConfigError: as Hogwild, nobody says who this process is, or more clusters than workers.
        LayoutMismatchError: another model, or other clusters, run under this name.
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
        with self._leaving_on_error():
            (words,) = share(
                box, f"{name}.ring", [torch.zeros(ring_words(clusters), dtype=torch.int64)]
            )
        self._words = words
        self._ring = TokenRing(as_array(words), self.cluster, clusters) if leads else None
        self._old = [torch.clone(weights) for weights in self._views.parameters]
        self._keep = -1  # steps until the token is passed on; below 0: it was not used yet

    def _own_name(self, name: str) -> str:
        """Return the name of the cluster."""
        return f"{name}.{self.cluster}"

    def _map(self, box: Box, name: str) -> ModelTensors:
        """Share the models of all clusters; the first worker's values are in every one."""
        claim(box, name, type(self).__name__, self._tensors.every, self._agreed())
        self._models = self._tensors.views(box, name, self.clusters)
        return self._models[self.cluster]

    def _advance(self) -> None:
        super()._advance()
        if self._ring is None or self.clusters == 1 or not self._ring.has_token():
            return
        if self._keep < 0:
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
        """Return what is evaluated: the model of the cluster where the token is."""
        return self._models[int(self._words[0])]

    def _take_center(self) -> None:
        """Take a copy of what is evaluated."""
        best = self._evaluated_center().every
        self._detach()
        for tensor, values in zip(self._views.every, best, strict=True):
            tensor.copy_(values)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on where :meth:`state_dict` was taken; see Hogwild.

        Every cluster continues from the state that its own first worker loads.
        """
        super().load_state_dict(state_dict)
        if is_plain(state_dict):
            return
        for old, weights in zip(self._old, self._views.parameters, strict=True):
            old.copy_(weights)

    def _end(self) -> None:
        """Let the token pass this cluster over."""
        if self._ring is not None:
            self._ring.leave()


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
        w: the holder's, contiguous; others may add to it meanwhile.
        v: the next cluster's, of the same shape, contiguous; only moved elements are written.
        u: w at the holder's last exchange, less what it has held back.
        beta: share of a move that the next cluster takes.
        lambda_: share of the next cluster that the holder takes.
        tolerance: moves up to this size are held back.
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

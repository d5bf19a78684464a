"""Synchronous SGD by ring all-reduce between workers, for comparison with a memory box.

In every step the gradients of all W workers are averaged around a ring (``ring``), and all
workers do the same step. g_i the gradient of worker i at the common x, w_i its weight, f the
step of the inner optimizer:

    g = (w_0 g_0 + ... + w_W-1 g_W-1) / sum_i(w_i);    x = f(x, g)    on every worker

A worker sends ``2 (W - 1) / W`` times the model per step, which is less than twice the model
for any W; the traffic of a parameter server grows with W. But all workers wait for the slowest,
and no worker can leave.

Variant: one all-reduce of the flat gradient per step and dtype, after backward.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from typing import Final

import torch

from smbox.errors import ConfigError
from smbox_torch.adapter import as_array
from smbox_torch.averaging.gradient_rounds import GradientRounds
from smbox_torch.averaging.mean import averaged, buffers_of
from smbox_torch.averaging.optimizer import AveragingOptimizer
from smbox_torch.averaging.ring import Exchange, Ring
from smbox_torch.averaging.store_exchange import StoreExchange
from smbox_torch.averaging.summed_mean import AllReduceSum, SummedMean
from smbox_torch.averaging.sync_group import TIMEOUT_S
from smbox_torch.checks import seconds
from smbox_torch.model.others import other_parameters
from smbox_torch.world import World, bracketed, world_or_launched

__all__ = ["RingAllReduce"]

LOOPBACK: Final = "127.0.0.1"


class RingSum(AllReduceSum):
    """Sums around a ring, on one rank; tensors of a device are copied to host memory.

    Args:
        ring: the ring, as seen by this worker.
    """

    def __init__(self, ring: Ring) -> None:
        super().__init__(ring.rank, ring.size)
        self._ring = ring

    def _add(self, tensor: torch.Tensor) -> None:
        host = tensor.cpu()  # the same tensor if it is on the CPU
        self._ring.sum(as_array(host).reshape(-1))
        if host is not tensor:
            tensor.copy_(host)

    def share(self, state: torch.Tensor, source: int) -> None:
        """Broadcast the buffers of rank ``source``."""
        host = state.cpu()
        self._ring.broadcast(as_array(host), source)
        if host is not state:
            state.copy_(host)

    def nbytes(self, flats: Sequence[torch.Tensor]) -> int:
        """Return the bytes of gradients that are sent and received."""
        return sum(4 * (self.size - 1) * flat.nbytes // self.size for flat in flats)

    def close(self, *, steps: int | None) -> None:  # noqa: ARG002 - a ring tells nobody
        """Leave the ring."""
        self._ring.close()


class RingAllReduce(AveragingOptimizer):
    """Synchronous SGD: steps with the mean gradient of all workers, without a memory node.

    All ranks start with the parameters (also frozen ones) and buffers of rank 0. With
    ``model``, all ranks have the buffers of the first rank with a batch after every backward.

    Args:
        optimizer: the inner optimizer; it does the steps. The gradients of its parameters that
            require gradients are averaged.
        model: also keep the buffers (batch norm) of this model equal on all ranks.
        world: rank and size of this process; None: as set by the launcher.
        exchange: function by which the workers of one host exchange addresses; None: torch's
            store at the ``master_addr`` and ``master_port`` of ``world``.
        timeout_s: time after which a silent worker is considered lost, in seconds.

    Raises:
        ConfigError: rank and size of this process are unknown, a parameter cannot be averaged,
            the workers' models differ, several workers have neither ``exchange`` nor a master
            that this host can reach, or some listen on loopback and others not; nothing was
            changed.
        WorkerLostError: a worker never arrived; nothing was changed.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        model: torch.nn.Module | None = None,
        *,
        world: World | None = None,
        exchange: Exchange | None = None,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        super().__init__(optimizer, model=model)
        self._model = model
        timeout_s = seconds("timeout_s", timeout_s)
        world = world_or_launched(world)
        self.rank, self.workers = world.rank, world.world_size
        parameters, self._frozen = averaged(optimizer)
        buffers = buffers_of(model)
        ring = Ring(
            world.rank,
            world.world_size,
            exchange or _exchange_of(world, timeout_s),
            host=LOOPBACK if exchange else _own_host(world.master_addr or LOOPBACK),
            timeout_s=timeout_s,
        )
        try:
            by = RingSum(ring)
            mean = SummedMean(parameters, buffers, by)
            others = other_parameters(model, self._wrapped)
            by.begin_alike([*parameters, *self._frozen, *others, *buffers])
        except BaseException:
            ring.close()
            raise
        self._rounds = GradientRounds(parameters, mean, optimizer, model=model)
        self._remember()


def _exchange_of(world: World, timeout_s: float) -> Exchange:
    return StoreExchange(world, timeout_s) if world.world_size > 1 else _alone


def _alone(address: str) -> Sequence[str]:
    return [address]


def _own_host(master_addr: str) -> str:
    """Return the address by which this host reaches the master; nothing is sent.

    Raises:
        ConfigError: the master's address is unknown here.
    """
    try:
        family, *_, master = socket.getaddrinfo(master_addr, 1, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(master)
            host: str = probe.getsockname()[0]
    except OSError as error:
        raise ConfigError(
            "this host cannot reach the master's address: check MASTER_ADDR",
            master_addr=master_addr,
            reason=str(error),
        ) from error
    return bracketed(host)

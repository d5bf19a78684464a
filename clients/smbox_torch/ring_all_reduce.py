"""Synchronous SGD by ring all-reduce between workers: what a memory box is compared with.

Every step the gradients of all W workers are averaged around a ring (``ring``), and all step
alike. g_i the gradient of worker i at the common x, f the step of the optimizer inside:

    g = (g_0 + ... + g_W-1) / W;    x = f(x, g)                 on every worker alike

A worker sends ``2 (W - 1) / W`` times the model per step, whatever W is, where a parameter
server's traffic grows with W; but all wait for the slowest, and none can leave.

Variant: one all-reduce of the whole flat gradient per step and dtype, after backward.
"""

from __future__ import annotations

import datetime as dt
import os
import socket
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

import torch
from torch.distributed.rendezvous import rendezvous

from smbox_torch.adapter import as_array
from smbox_torch.flat import FlatBuffer, FlatParameters
from smbox_torch.ring import Exchange, Ring
from smbox_torch.stats import Recorder, Stats
from smbox_torch.sync_group import TIMEOUT_S, world_or_default
from smbox_torch.world import World
from smbox_torch.wrapped import WrappedOptimizer

__all__ = ["RingAllReduce"]

STORE_PREFIX: Final = "smbox_torch.ring"


class RingAllReduce(WrappedOptimizer):
    """An optimizer that steps with the mean gradient of all workers, without a memory node.

    Parameters begin as those of rank 0. A parameter without a gradient counts as zero; a
    frozen one stays as it is.

    Args:
        optimizer: does the steps.
        world: who this process is; None: torchrun's variables.
        exchange: how the workers learn each other's addresses; None: the store at MASTER_ADDR
            and MASTER_PORT, which torchrun and ``smbox run`` provide for.
        timeout_s: until a worker that says nothing is given up, in seconds.

    Raises:
        WorkerLostError: a worker never came.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        *,
        world: World | None = None,
        exchange: Exchange | None = None,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        super().__init__(optimizer)
        world = world_or_default(world)
        members = (p for group in optimizer.param_groups for p in group["params"])
        self._flat = FlatParameters(members)
        self._recorder = Recorder()
        by_store = _alone if world.world_size == 1 else _StoreExchange(world, timeout_s)
        self._exchange = exchange or by_store
        self._ring = Ring(
            world.rank,
            world.world_size,
            self._exchange,
            host=_own_host(os.environ) if exchange is None else "127.0.0.1",
            timeout_s=timeout_s,
        )
        try:
            for buffer in self._flat.buffers:
                self._ring.broadcast(buffer.load())
                buffer.store()
        except BaseException:
            self.close()
            raise
        self._remember()

    def _advance(self) -> None:
        """Average and step; WorkerLostError leaves the parameters as before."""
        began_s = time.monotonic()
        nbytes = sum(self._average(buffer) for buffer in self._flat.buffers)
        took_s = time.monotonic() - began_s
        self._recorder.exchange(took_s=took_s, nbytes=nbytes)
        self._recorder.waited(took_s)
        self.inner.step()
        self._recorder.steps += 1

    def _average(self, buffer: FlatBuffer) -> int:
        """Average the gradients of one dtype; returns the bytes sent and received."""
        buffer.attach_gradients()
        gradient = buffer.gradient
        assert gradient is not None
        host = gradient.cpu()  # itself where it is there already
        self._ring.mean(as_array(host))
        if host is not gradient:
            gradient.copy_(host)
        return 4 * (self._ring.size - 1) * host.nbytes // self._ring.size

    def stats(self) -> Stats:
        """Return what was counted: all-reduces as exchanges, all waited for, and bytes."""
        return self._recorder.snapshot()

    def close(self) -> None:
        """Leave the ring; workers that still step learn it by WorkerLostError."""
        self._ring.close()


def _alone(address: str) -> Sequence[str]:
    return [address]


class _StoreExchange:
    """Addresses by way of the store that torch's own process groups begin with.

    Rank 0 may be the one that serves the store, so it is kept as long as this object.
    """

    def __init__(self, world: World, timeout_s: float) -> None:
        self._world = world
        self._timeout = dt.timedelta(seconds=timeout_s)
        self._store: Any = None

    def __call__(self, address: str) -> Sequence[str]:
        """Tell this worker's address and learn the others'."""
        world = self._world
        self._store, _, _ = next(iter(rendezvous("env://", timeout=self._timeout)))
        prefix = f"{STORE_PREFIX}.{world.restart}"
        self._store.set(f"{prefix}.{world.rank}", address)
        names = [f"{prefix}.{rank}" for rank in range(world.world_size)]
        return [self._store.get(name).decode() for name in names]


def _own_host(env: Mapping[str, str]) -> str:
    """Return the address by which this host reaches the master; nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((env.get("MASTER_ADDR", "127.0.0.1"), 1))
        host: str = probe.getsockname()[0]
        return host

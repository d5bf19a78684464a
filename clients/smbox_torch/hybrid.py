"""HybridSGD: synchronous SGD inside a host, elastic averaging between hosts.

ShmCaffe-H (ICDCS 2018): the workers of a host form a group that steps with its mean gradient
(``sync_group``); every ``period`` steps the group's root exchanges with the center, and the
group moves together. Traffic with the memory node falls by the size of the group. With x the
group's parameters, c the center, g the group's mean gradient at the x it had before:

    every period steps:  d = moving_rate * (x - c);  c = c + d;  x = x - d     (one atomic op)
    every step:          x = f(x, g)                            (the optimizer inside)

Variant: the paper's groups use SEASGD's three steps; here the exchange is EASGD's fused one.
The paper's root then broadcasts its weights; here the memory answers with d right into memory
that the group shares, and each worker subtracts it: x is the same on all to the last bit, and
the update crosses the host once. A ``torch.distributed`` group gets d by a broadcast.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from smbox.errors import ConfigError
from smbox_torch.adapter import as_array
from smbox_torch.boxes import BoxLike
from smbox_torch.easgd import EASGD
from smbox_torch.flat import FlatBuffer, FlatParameters, float_buffers
from smbox_torch.hybrid_moves import GroupMoves, HostMoves, TorchMoves
from smbox_torch.stats import Recorder, Stats
from smbox_torch.sync_group import BUCKET_NBYTES, TIMEOUT_S, SyncGroup, world_or_default
from smbox_torch.world import World

__all__ = ["HybridRoot", "HybridSGD"]


class HybridRoot(EASGD):
    """The part of the group's root: its exchange tells the move and leaves x alone."""

    def tell(self, moves: Sequence[torch.Tensor]) -> None:
        """Exchange with the center; the moves of all buffers come back in ``moves``."""
        with torch.no_grad(), self._exchanging(2 * self.nbytes):
            for (buffer, region), move in zip(self.pairs(), moves, strict=True):
                region.elastic(buffer.load(), self.moving_rate, delta=as_array(move))
        self.recorder.behind(self.center.behind())


class HybridSGD(SyncGroup):
    """Elastic averaging whose workers are hosts: each a group that steps synchronously.

    Args:
        optimizer: does the steps.
        box: the memory; only the root (LOCAL_RANK 0, or the group's rank 0) needs one.
        name: of the run: prefix of the regions.
        period: steps between two exchanges with the center.
        moving_rate: share of the distance that group and center move; None: 0.9 / groups.
        groups: number of hosts; None: WORLD_SIZE / LOCAL_WORLD_SIZE, or / the group's size.
        model: also keep its buffers in step, and exchange its floating-point ones.
        world: who this process is; None: torchrun's variables.
        bucket_nbytes: most bytes of gradients that are announced at once.
        timeout_s: until a living rank that does not answer is given up, in seconds.
        group: a process group that steps together instead of the ranks of this host.

    Raises:
        ConfigError: impossible arguments, or the ranks' models differ.
        LayoutMismatchError: the center of this name belongs to another model.
        WorkerLostError: a rank of this host never came.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        box: BoxLike | None,
        name: str,
        *,
        period: int = 10,
        moving_rate: float | None = None,
        groups: int | None = None,
        model: torch.nn.Module | None = None,
        world: World | None = None,
        bucket_nbytes: int = BUCKET_NBYTES,
        timeout_s: float = TIMEOUT_S,
        group: dist.ProcessGroup | None = None,
    ) -> None:
        if period < 1:
            raise ConfigError("period must be at least 1", period=period)
        world = world_or_default(world)
        rank, ranks = world.local_rank, world.local_world_size
        if group is not None:
            rank, ranks = dist.get_rank(group), dist.get_world_size(group)
        self.period = period
        self.steps = 0
        self._root: HybridRoot | None = None
        if rank == 0:
            if box is None:
                raise ConfigError("the root of a group needs a box")
            self._root = HybridRoot(
                optimizer,
                box,
                name,
                period=period,
                moving_rate=moving_rate,
                workers=groups or world.world_size // ranks,
                model=model,
            )
            self._parameters = self._root.flat
            self._flat = [buffer for buffer, _ in self._root.pairs()]
        else:
            members = (p for each in optimizer.param_groups for p in each["params"])
            self._parameters = FlatParameters(members)
            self._flat = [*self._parameters.buffers, *_statistics(model)]
        shared = f"hybrid-{zlib.crc32(name.encode()):08x}"
        super().__init__(
            optimizer,
            model,
            world=world,
            name=shared,
            bucket_nbytes=bucket_nbytes,
            timeout_s=timeout_s,
            group=group,
        )
        self._moves: GroupMoves
        if group is not None:
            self._moves = TorchMoves(group, self._flat)
        else:
            self._moves = HostMoves(f"{shared}-move", world, self._flat, timeout_s)
        self._recorder = Recorder() if self._root is None else self._root.recorder

    def _step(self) -> None:
        if self.steps % self.period == 0:
            self.exchange()
        super()._step()
        self.steps += 1
        self._recorder.steps += 1

    @torch.no_grad()
    def exchange(self) -> None:
        """Move group and center together now, whatever the period says; on all ranks.

        Raises:
            WorkerLostError: the root died, left or did not come; x is as it was.
        """
        if self._root is not None:
            self._root.tell(self._moves.tensors)
            self._moves.tell()
        else:
            self._hear()
        for buffer, move in zip(self._flat, self._moves.tensors, strict=True):
            buffer.flat.sub_(move.to(buffer.flat.device))

    def _hear(self) -> None:
        """Wait for the move that the root is told."""
        began_s = time.monotonic()
        self._moves.hear()
        took_s = time.monotonic() - began_s
        self._recorder.exchange(took_s=took_s, nbytes=0)
        self._recorder.waited(took_s)

    def stats(self) -> Stats:
        """Return what was counted of exchanges with the center; only the root moves bytes."""
        return self._recorder.snapshot()

    def sync_stats(self) -> Stats:
        """Return what was counted of rounds of gradients inside the host."""
        return super().stats()

    def center_into(self, model: torch.nn.Module) -> None:
        """Copy the center's parameters into a model, to evaluate or save it.

        Raises:
            ConfigError: this rank is not its group's root, or the parameters differ.
        """
        self._as_root().center_into(model)

    def state_dict(self) -> dict[str, Any]:
        """Return all that :meth:`load_state_dict` needs; the root's holds the center too.

        Raises:
            ConfigError: this rank is not its group's root.
        """
        root = self._as_root()
        root.steps = self.steps
        return root.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any], *, force: bool = False) -> None:
        """Go on where the root's :meth:`state_dict` was taken, on every rank.

        Args:
            state_dict: as the root returned it.
            force: restore the center even where workers use it already.
        """
        if self._root is not None:
            self._root.load_state_dict(state_dict, force=force)
        else:
            self.inner.load_state_dict(state_dict["inner"])
            for buffer in self._parameters.buffers:
                buffer.flat.detach().copy_(state_dict["parameters"][buffer.dtype])
        self._adopt()
        self.steps = state_dict["steps"]

    def _as_root(self) -> HybridRoot:
        if self._root is None:
            raise ConfigError("only the root of a group knows the center")
        return self._root

    def close(self) -> None:
        """Leave group and run; the center stays."""
        if self._root is not None:
            self._root.close()
        self._moves.close()
        super().close()


def _statistics(model: torch.nn.Module | None) -> Sequence[FlatBuffer]:
    """Flatten a model's floating-point buffers, as the root does."""
    tensors = float_buffers(model) if model is not None else []
    return FlatParameters(tensors).buffers if tensors else ()

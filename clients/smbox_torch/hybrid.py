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

With ``overlap`` the exchange of the x of step t runs on an update thread of the root during the
gradients of step t + 1, and all ranks subtract its d when that step begins, as in EASGD.
"""

from __future__ import annotations

import zlib
from types import TracebackType
from typing import Any

import torch
import torch.distributed as dist

from smbox.errors import ConfigError
from smbox_torch.boxes import BoxLike
from smbox_torch.flat import FlatParameters, float_buffers, other_buffers
from smbox_torch.hybrid_moves import GroupMoves, HostMoves, TorchMoves
from smbox_torch.hybrid_parts import AtOnce, HybridRoot
from smbox_torch.overlap import Exchange, Overlap, ThreadedExchange
from smbox_torch.precision import Precision
from smbox_torch.restoring import restore
from smbox_torch.stats import Recorder, Stats
from smbox_torch.sync_group import BUCKET_NBYTES, TIMEOUT_S, SyncGroup, world_or_default
from smbox_torch.world import World
from smbox_torch.wrapped import is_plain

__all__ = ["HybridSGD"]


class HybridSGD(SyncGroup):
    """Elastic averaging whose workers are hosts: each a group that steps synchronously.

    Args:
        optimizer: does the steps.
        box: the memory; only the root (LOCAL_RANK 0, or the group's rank 0) needs one.
        name: of the run: prefix of the regions.
        period: steps between two exchanges with the center.
        moving_rate: share of the distance that group and center move; None: 0.9 / groups.
        groups: number of hosts; None: as the launcher tells, or WORLD_SIZE / the group's size.
        overlap: hide the exchange behind the next gradients, on an update thread of the root.
        model: also keep its buffers in step, and exchange its floating-point ones.
        center_dtype: see BoxOptimizer; the same on all ranks.
        wire: see BoxOptimizer; the same on all ranks.
        world: who this process is; None: as the launcher tells.
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
        overlap: bool = False,
        model: torch.nn.Module | None = None,
        center_dtype: str = "float32",
        wire: str | None = None,
        world: World | None = None,
        bucket_nbytes: int = BUCKET_NBYTES,
        timeout_s: float = TIMEOUT_S,
        group: dist.ProcessGroup | None = None,
    ) -> None:
        if period < 1:
            raise ConfigError("period must be at least 1", period=period)
        world = world_or_default(world)
        rank = world.local_rank if group is None else dist.get_rank(group)
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
                workers=groups or _groups(world, group),
                model=model,
                center_dtype=center_dtype,
                wire=wire,
            )
            self._parameters = self._root.flat
        else:
            self._flatten(optimizer, model, Precision(center_dtype, wire))
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
        self._recorder = Recorder() if self._root is None else self._root.recorder
        self._is_hidden = overlap
        self._group_moves(f"{shared}-move", timeout_s, group)

    def _flatten(
        self,
        optimizer: torch.optim.Optimizer,
        model: torch.nn.Module | None,
        precision: Precision,
    ) -> None:
        """Make parameters and statistics flat, as the root's are."""
        members = (p for each in optimizer.param_groups for p in each["params"])
        self._parameters = FlatParameters(members, precision=precision)
        means = [] if model is None else float_buffers(model)
        self._statistics = FlatParameters(means, precision=precision) if means else None
        self._counts = [] if model is None else other_buffers(model)

    def _group_moves(
        self, name: str, timeout_s: float, group: dist.ProcessGroup | None
    ) -> None:
        """Open the way of the moves from the root to all ranks."""
        self._moves: GroupMoves
        flat = self._parameters.buffers
        if group is not None:
            self._moves = TorchMoves(group, flat, timeout_s)
        else:
            # A hidden exchange may begin as soon as the root has used the move of the last one
            # (at period 1 it does), and the others may still be reading that. Written to the
            # other of two sets it need not wait for them.
            sets = 2 if self._is_hidden else 1
            self._moves = HostMoves(name, self.world, flat, timeout_s, sets=sets)
        exchange: Exchange | None = None
        if self._root is not None:
            kind = ThreadedExchange if self._is_hidden else AtOnce
            exchange = kind(self._root)
        self._overlap = Overlap(flat, self._moves, self._recorder, exchange)

    def _step(self) -> None:
        self._settle()
        if self.steps % self.period == 0:
            self._moves.due()
            self.exchange()
        super()._step()
        self.steps += 1
        self._recorder.steps += 1

    def _is_awaited(self) -> bool:
        return self._moves.is_due()

    def exchange(self) -> None:
        """Move group and center together now, whatever the period says; on all ranks.

        With overlap: begin it; x moves at the next step, exchange or ``close``.

        Raises:
            WorkerLostError: a rank died, left or did not come; x is as it was.
        """
        self._demand_unchanged()
        self._settle()
        self._overlap.begin()
        if not self._is_hidden:
            self._settle()

    def _settle(self) -> None:
        """Move x by what the exchange under way was told; leave the group if that fails."""
        try:
            self._overlap.settle()
        except Exception:
            # The others do not know yet, and ranks that went on from here would differ.
            self._leave()
            raise

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
        self._remember_filled(model)

    def state_dict(self) -> dict[str, Any]:
        """Return all that :meth:`load_state_dict` needs; the root's holds the center too.

        Raises:
            ConfigError: this rank is not its group's root.
        """
        root = self._as_root()
        root.steps = self.steps
        moves = self._overlap.state()  # before the center is read: it is in the center
        return {**root.state_dict(), "moves": moves}

    def load_state_dict(self, state_dict: dict[str, Any], *, force: bool = False) -> None:
        """Go on where the root's :meth:`state_dict` was taken, on every rank.

        Args:
            state_dict: as the root returned it.
            force: restore the center even where workers use it already.
        """
        if is_plain(state_dict):
            load = super().load_state_dict if self._root is None else self._root.load_state_dict
            load(state_dict)
            self._adopt()
            return
        self._overlap.finish()
        if self._root is not None:
            self._root.load_state_dict(state_dict, force=force)
        else:
            self.inner.load_state_dict(state_dict["inner"])
            restore(state_dict, self._parameters, self._statistics, self._counts)
        self._overlap.load_state(state_dict.get("moves"))
        self._adopt()
        self.steps = state_dict["steps"]
        self._remember()

    def _as_root(self) -> HybridRoot:
        if self._root is None:
            raise ConfigError("only the root of a group knows the center")
        return self._root

    def close(self) -> None:
        """Finish the exchange under way, then leave group and run; the center stays.

        Raises:
            WorkerLostError: the root was lost with the exchange; this rank has left.
        """
        self._settle()
        self._leave()

    def _leave(self) -> None:
        self._overlap.close()
        self._moves.close()
        if self._root is not None:
            self._root.close(exchange=False)
        super().close()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close; after an error a process group is left at once."""
        if error is not None and isinstance(self._moves, TorchMoves):
            # A broadcast that the other ranks do not come to would keep this one waiting.
            self._leave()
        else:
            self.close()


def _groups(world: World, group: dist.ProcessGroup | None) -> int:
    """Return the number of hosts, or of groups as large as the one given."""
    if group is not None:
        return world.world_size // dist.get_world_size(group)
    if world.groups is None:
        raise ConfigError(
            "WORLD_SIZE is no multiple of LOCAL_WORLD_SIZE, so the number of hosts is unknown:"
            " give groups=",
            world_size=world.world_size,
            local_world_size=world.local_world_size,
        )
    return world.groups

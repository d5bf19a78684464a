"""HybridSGD: synchronous SGD inside a host, elastic averaging between hosts.

ShmCaffe-H (ICDCS 2018): the workers of a host form a group that steps with its mean gradient
(``sync_group``); every ``period`` steps the group's root exchanges with the center, and the
group moves together. Traffic with the memory node falls by the size of the group. With x the
group's parameters, c the center, g the group's mean gradient at the x it had before:

    every period steps:  d = moving_rate * (x - c);  c = c + d;  x = x - d     (one atomic op)
    every step:          x = f(x, g)                            (the optimizer inside)

Variant: the exchange is EASGD's fused one; ``exchange="seasgd"`` is the paper's, read and add
(``hybrid_seasgd``), and follows the step: the next gradient is taken at the moved x.
The paper's root then broadcasts its weights; here d is written into memory that the group
shares, and each worker subtracts it: x is the same on all to the last bit. A
``torch.distributed`` group gets d by a broadcast, one over several hosts from a memory node.

With ``overlap`` the fused exchange runs on an update thread of the root while gradients are
taken, and all ranks subtract its d as the step begins, as in EASGD. Of SEASGD's only the add.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch
import torch.distributed as dist

from smbox.errors import StepMismatchError, WorkerLostError
from smbox_torch.averaging.mean import averaged
from smbox_torch.averaging.sync_group import BUCKET_NBYTES, TIMEOUT_S, SyncGroup
from smbox_torch.boxes import BoxLike
from smbox_torch.hybrid.exchange import GroupExchange
from smbox_torch.hybrid.groups import Groups, Run, find_placement
from smbox_torch.hybrid.member import HybridMember
from smbox_torch.hybrid.roles import ExchangeName, ExchangeSettings, create_role
from smbox_torch.hybrid.root import HybridRoot, address_bytes
from smbox_torch.optimizer.checkpoint import demand_algorithm, is_plain
from smbox_torch.optimizer.options import BoxOptions
from smbox_torch.optimizer.stats import Stats
from smbox_torch.world import World, world_or_launched

__all__ = ["HybridSGD"]


class HybridSGD(SyncGroup):
    """Elastic averaging whose workers are hosts: each a group that steps synchronously.

    Args:
        optimizer: does the steps.
        box: the memory; only the root (LOCAL_RANK 0, or the group's rank 0) needs to have one.
        name: of the run: prefix of the regions.
        period: steps between two exchanges with the center.
        moving_rate: of group and center; None: 0.45, of "seasgd" 0.9 / groups.
        groups: number of hosts, or of process groups; None: GROUP_WORLD_SIZE. "auto": chosen
            by measured links (``topology``), or a Topology; all ranks need a box then.
        exchange: "elastic", EASGD's fused operation, or "seasgd", the paper's read and add.
        overlap: hide the exchange ("seasgd": the add) behind gradients, on a thread; see EASGD.
        increment: name of this group's own increment region, see SEASGD; for "seasgd" alone.
        model: also keep its buffers in step, and exchange its floating-point ones.
        center_dtype, wire: see BoxOptimizer; the same on all ranks.
        world: who this process is; None: as the launcher tells.
        bucket_nbytes: most bytes of gradients that are announced at once.
        timeout_s: until a living rank that does not answer is given up, in seconds.
        group: a process group that steps together instead of the ranks of this host.

    Raises:
        TypeError, LimitError, ConfigError: impossible arguments, nobody says who this is, the
            number of groups is unknown and moving_rate not given, or the ranks' models differ.
        LayoutMismatchError: the center of this name belongs to another model.
        WorkerLostError: a rank of this host never came; "auto": a rank died meanwhile.
        ConnectError: "auto": a link cannot be measured; no region of the model was created.
    """

    _role: HybridRoot | HybridMember

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        box: BoxLike | None,
        name: str,
        *,
        period: int = 1,
        moving_rate: float | None = None,
        groups: Groups = None,
        exchange: ExchangeName = "elastic",
        overlap: bool = False,
        increment: str | None = None,
        model: torch.nn.Module | None = None,
        center_dtype: str = "float32",
        wire: str | None = None,
        world: World | None = None,
        bucket_nbytes: int = BUCKET_NBYTES,
        timeout_s: float = TIMEOUT_S,
        group: dist.ProcessGroup | None = None,
    ) -> None:
        self._settings = ExchangeSettings(exchange, period, moving_rate, overlap, increment)
        run = Run(
            name, world_or_launched(world, group), self._settings, timeout_s, bucket_nbytes
        )
        place = find_placement(run, groups, box, group, averaged(optimizer)[0])
        self.topology, box, mine = place.topology, place.box, place.group
        self.period, self.steps, self._shared_steps = period, 0, 0
        self._told = [address_bytes(box)]
        address = None if place.is_root else self._told[0]
        options = BoxOptions(model=model, center_dtype=center_dtype, wire=wire)
        options["workers"] = place.groups
        self._role = create_role(optimizer, box, name, self._settings, address, **options)
        shared = f"hybrid-{zlib.crc32(name.encode()):08x}"
        super().__init__(
            optimizer,
            model,
            world=run.world,
            name=shared,
            bucket_nbytes=bucket_nbytes,
            timeout_s=timeout_s,
            group=mine,
        )
        self._recorder, self._own = self._role.recorder, self._role.own
        try:
            ends = (self._role, mine, f"{shared}-move", self.world, timeout_s, self._host_mean)
            self._exchange = GroupExchange(*ends, is_hidden=self._settings.is_hidden)
        except BaseException:
            self._rounds.close(in_order=False)
            raise

    def _step(self) -> None:
        if not self._settings.steps_first:
            self._exchange_if_due()
        if self._exchange.is_pending:
            self._rounds.meet()
        self._settle()
        super()._step()
        self._recorder.step()
        if self._settings.steps_first or self._settings.is_hidden:
            self._exchange_if_due()

    def _exchange_if_due(self) -> None:
        if self.steps % self.period == 0 and not self._exchange.is_pending:
            self._rounds.meet()
            self._exchange.moves.announce_due()
            self.exchange()

    def _is_awaited(self) -> bool:
        return self._exchange.moves.is_due()

    def exchange(self) -> None:
        """Move group and center together now, whatever the period says; on all ranks.

        With overlap: begin it; x moves at the next step, exchange or close.

        Raises:
            WorkerLostError: a rank died, left or did not come; x is as it was.
        """
        self._demand_open()
        self._role.own.check()
        self._demand_unchanged()
        self._settle()
        with self._leaving_if_lost():
            self._exchange.begin()
        self._shared_steps = self.steps

    def _settle(self) -> None:
        """Move x by what the exchange under way was told; leave the group if that fails."""
        with self._leaving_if_lost():
            self._exchange.settle()

    @contextmanager
    def _leaving_if_lost(self) -> Iterator[None]:
        try:
            yield
        except Exception:
            self._leave(in_order=False)  # the others do not know yet; from here they differ
            raise

    def stats(self) -> Stats:
        """Return what was counted of exchanges with the center; only the root moves bytes."""
        return self._recorder.snapshot()

    def sync_stats(self) -> Stats:
        """Return what was counted of rounds of gradients inside the host."""
        return super().stats()

    def center_into(self, model: torch.nn.Module) -> None:
        """Copy the center's parameters into a model, to evaluate or save it; any rank, alone.

        Raises:
            ConfigError: the parameters differ, or the root's box has no address.
            ConnectError: the memory node cannot be reached from here.
        """
        self._exchange.finish()  # it reads x, which may be the model's
        self._role.center_into(model)
        self._remember_filled(model)

    def _take_center(self) -> None:
        self._exchange.finish()
        self._role.take_center()

    def state_dict(self) -> dict[str, Any]:
        """Return what :meth:`load_state_dict` needs; any rank may call it, alone.

        Only the root's holds the center, and the move of an exchange that is under way.
        """
        moves = self._exchange.state()  # before the center is read: it is in the center
        self._role.steps = self.steps
        return {**self._role.state_dict(), "rank": self.rank, "extra": {"moves": moves}}

    def load_state_dict(self, state_dict: dict[str, Any], *, force: bool = False) -> None:
        """Go on where :meth:`state_dict` was taken; every rank calls it at once.

        All ranks may load the root's, or each its own. A root that loads that of another rank
        restores the center as the parameters.

        Args:
            state_dict: as a rank returned it.
            force: restore the center even where workers use it already.

        Raises:
            ConfigError: it belongs to another algorithm; nothing was changed.
        """
        if is_plain(state_dict):
            self._load_inner(state_dict)
            return
        demand_algorithm(state_dict, self._settings.algorithm)
        self._exchange.finish()
        self._role.load_state_dict(state_dict, force=force)
        self._exchange.load_state(state_dict["extra"]["moves"])
        self._adopt()
        self._rounds.equal_state.is_due = True
        self.steps = state_dict["steps"]
        self._remember()

    def finish(self, *, timeout_s: float | None = None) -> None:
        """End the run together with the other groups; the model then holds the center.

        All ranks of the group call it. They exchange what the period has left; the root waits
        for the other groups; and the group moves to the center and leaves.

        Args:
            timeout_s: longest wait for the other groups; see docs/algorithms/hybrid.md.

        Raises:
            RequestTimeoutError: on the root: a group did not come; call again, or close.
            WorkerLostError: a rank of this group was lost, or its root did not come.
            ConfigError: it was closed before.
        """
        self._demand_finishable()
        self.train()
        with torch.no_grad():
            self._share_rest()
            self._has_ended = True
            self._role.wait_for_groups(timeout_s)
            with self._leaving_if_lost():
                self._exchange.to_center()
        self._leave(in_order=True)

    def close(self, *, exchange: bool = True) -> None:
        """Leave group and run, all ranks of the group at once; the center stays. Idempotent.

        Args:
            exchange: first share with the center what the period has left.

        Raises:
            WorkerLostError: the root was lost with the exchange; this rank has left.
        """
        if self._is_closed:
            return
        self.train()
        with torch.no_grad():
            if exchange:
                self._share_rest()
            self._settle()
        self._leave(in_order=True)

    def _share_rest(self) -> None:
        if self.steps > self._shared_steps:
            self.exchange()
        self._settle()

    def _leave(self, *, in_order: bool) -> None:
        self._is_closed = True
        self._exchange.close()
        self._rounds.close(in_order=in_order)
        self._role.close(exchange=False)

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Close; after an error a process group is left at once."""
        if error is None:
            self.close()
            return
        # A broadcast that the other ranks do not come to would keep this one waiting.
        if self._host_mean is not None:
            with suppress(WorkerLostError, StepMismatchError):  # the first error says more
                self._settle()
        self._leave(in_order=False)

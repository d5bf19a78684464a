"""HybridSGD: synchronous SGD inside a host, elastic averaging between hosts.

ShmCaffe-H (ICDCS 2018): the workers of a host form a group that steps with its mean gradient
(``sync_group``). Every ``period`` steps the group's root exchanges with the center, and all
apply its move: a group has the traffic of one worker. x are the group's parameters, c the
center, g the group's mean gradient at the x before the exchange:

    every period steps:  d = moving_rate * (x - c);  c = c + d;  x = x - d     (one atomic op)
    every step:          x = f(x, g)                            (the inner optimizer)

Variant: the exchange is EASGD's fused one. ``exchange="seasgd"`` is the paper's, with separate
read and add (``hybrid/seasgd.py``); it follows the step, so that the next gradient is taken at
the moved x. The paper's root broadcasts its weights. Here all ranks get d, and subtract it from
the same x: in memory that the group shares, by a broadcast, or from a memory node.

With ``overlap`` the root exchanges on a thread while gradients are computed, and all ranks
subtract d when the step begins, as in EASGD. With SEASGD only the add overlaps.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import torch
import torch.distributed as dist

from smbox.errors import StepMismatchError, WorkerLostError
from smbox_torch.averaging.mean import averaged
from smbox_torch.averaging.sync_group import BUCKET_NBYTES, TIMEOUT_S, SyncGroup
from smbox_torch.boxes import BoxLike
from smbox_torch.hybrid.exchange import GroupExchange, rounding_errors
from smbox_torch.hybrid.groups import Groups, Run, find_placement
from smbox_torch.hybrid.roles import ExchangeName, ExchangeSettings, create_role
from smbox_torch.hybrid.root import address_bytes
from smbox_torch.optimizer.checkpoint import is_plain
from smbox_torch.optimizer.options import BoxOptions
from smbox_torch.optimizer.stats import Stats
from smbox_torch.world import World, world_or_launched

__all__ = ["HybridSGD"]


class HybridSGD(SyncGroup):
    """Synchronous SGD inside groups of workers, and elastic averaging between the groups.

    Args:
        optimizer: the inner optimizer; it does the steps.
        box: the memory box; only the root (LOCAL_RANK 0, or rank 0 of the group) needs one.
        name: name of the run; the prefix of the regions.
        period: steps between two exchanges with the center.
        moving_rate: share of the distance that group and center move; None: 0.45, or
            0.9 / groups with "seasgd".
        groups: number of hosts, or of process groups; None: GROUP_WORLD_SIZE. "auto": groups
            chosen from measured links (``topology``); or a Topology. The last two need a box on
            every rank.
        exchange: "elastic", EASGD's fused operation, or "seasgd", the paper's read and add.
        overlap: run the exchange ("seasgd": the add) on an update thread; see EASGD.
        increment: name of this group's own increment region, see SEASGD; only with "seasgd".
        model: keep its buffers equal in a group, and exchange the floating-point ones.
        center_dtype, wire: see BoxOptimizer; the same on all ranks.
        world: rank and size of this process; None: as set by the launcher.
        bucket_nbytes: largest number of bytes of gradients that are averaged at once.
        timeout_s: longest wait for a live rank that does not respond, in seconds.
        group: a process group that steps synchronously, instead of the ranks of this host.

    Raises:
        TypeError, LimitError, ConfigError: invalid arguments, an unknown rank, unknown number
            of groups without moving_rate, or different models of the ranks.
        LayoutMismatchError: the center of this name belongs to another model.
        WorkerLostError: a rank of this host never arrived; "auto": a rank died meanwhile.
        ConnectError: "auto": a link cannot be measured; no region of the model was created.
    """

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
        world = world_or_launched(world, group)
        run = Run(name, world, self._settings, timeout_s, bucket_nbytes)
        place = find_placement(run, groups, box, group, averaged(optimizer)[0])
        self.topology, box, mine = place.topology, place.box, place.group
        self.period = period
        self._told = [address_bytes(box), torch.zeros((), dtype=torch.int64, device="cpu")]
        address = None if place.is_root else self._told[0]
        options = BoxOptions(model=model, center_dtype=center_dtype, wire=wire)
        options["workers"], options["rank"] = place.groups, place.index
        self._role = create_role(optimizer, box, name, self._settings, address, **options)
        shared = f"hybrid-{zlib.crc32(name.encode()):08x}"
        with ExitStack() as undo:
            undo.callback(self._role.close, exchange=False)
            self._rounding_errors = rounding_errors(self._role)
            self._told += self._rounding_errors
            self._told[1].fill_(self._role.steps)
            super().__init__(
                optimizer,
                model,
                world=world,
                name=shared,
                bucket_nbytes=bucket_nbytes,
                timeout_s=timeout_s,
                group=mine,
            )
            undo.callback(self._rounds.close, in_order=False)
            self.steps = self._shared_steps = int(self._told[1])  # of the root's predecessor
            self._recorder, self._own = self._role.recorder, self._role.own
            ends = (self._role, mine, f"{shared}-move", world, timeout_s, self._host_mean)
            self._exchange = GroupExchange(*ends, is_hidden=self._settings.is_hidden)
            undo.pop_all()

    def _step(self) -> None:
        with self._leaving_if_lost():
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
            self._exchange.broadcast.announce_due()
            self.exchange()

    def _demand_equal_others(self) -> None:
        self._role.check_others()

    def _is_awaited(self) -> bool:
        return self._exchange.broadcast.is_due()

    def exchange(self) -> None:
        """Exchange now, on all ranks; with overlap begin it, and x moves at the next step.

        Raises:
            WorkerLostError: a rank died, left or did not arrive; x is unchanged.
        """
        self._demand_open()
        self._role.own.check()
        self._demand_unchanged()
        with self._leaving_if_lost():
            self._exchange.begin(self.steps)
            self._shared_steps = self.steps

    def _settle(self) -> None:
        """Apply the move of the exchange in flight; leave the group if that fails."""
        with self._leaving_if_lost():
            self._exchange.settle()

    @contextmanager
    def _leaving_if_lost(self) -> Iterator[None]:
        try:
            yield
        except BaseException:  # an interrupt, too
            self._leave(in_order=False)  # the other ranks may have moved: they differ now
            raise

    def stats(self) -> Stats:
        """Return the counts of exchanges with the center; only the root transfers bytes."""
        return self._recorder.snapshot()

    def sync_stats(self) -> Stats:
        """Return the counts of the gradient averaging inside the group."""
        return super().stats()

    def center_into(self, model: torch.nn.Module) -> None:
        """Copy the center's parameters into a model; any rank may call it.

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
        """Return the state for :meth:`load_state_dict`.

        Any rank may call it. Only the root's state has the center and a pending move.
        """
        moves = self._exchange.state()  # first: the center already contains the move
        self._role.steps = self.steps
        own = {"rank": self.rank, "shared": self._shared_steps, "order": self._order}
        return {**self._role.state_dict(), **own, "extra": {"moves": moves}}

    def load_state_dict(self, state_dict: dict[str, Any], *, force: bool = False) -> None:
        """Resume from a state that :meth:`state_dict` returned; all ranks call it.

        All ranks may load the root's state, or each its own. A root that loads another rank's
        state sets the center to the parameters. ``force``: restore it even if workers use it.

        Raises:
            ConfigError: this rank has called finish or was closed, or the state belongs to
                another algorithm; nothing was changed.
        """
        if is_plain(state_dict):
            self._load_inner(state_dict)
            return
        self._demand_loadable(state_dict, self._settings.algorithm)
        self._exchange.finish()
        self._role.load_state_dict(state_dict, force=force)
        self._exchange.load_state(state_dict["extra"]["moves"], state_dict["shared"])
        self._rounds.equal_state.is_due = True
        self.steps, self._shared_steps = state_dict["steps"], state_dict["shared"]
        self._remember()

    def finish(self, *, timeout_s: float | None = None) -> None:
        """End the run together with the other groups; the model then holds the center.

        All ranks of the group call it. They exchange the steps that were not exchanged yet; the
        root waits for the other groups; then the group moves to the center and leaves.

        Args:
            timeout_s: longest wait for the other groups; see docs/algorithms/hybrid.md.

        Raises:
            RequestTimeoutError: on the root: a group did not arrive; call again, or close.
            WorkerLostError: a rank of this group was lost, or the root did not arrive.
            ConfigError: the optimizer was closed before, timeout_s is invalid, or the model was
                moved or converted.
        """
        self._demand_finishable(timeout_s)
        self._role.own.check_places()
        self.train()
        with torch.no_grad():
            self._share_rest()
            self._has_ended = True
            self._role.wait_for_groups(timeout_s)
            self._set_inner("eval")  # a later one would change the center
            with self._leaving_if_lost():
                self._exchange.to_center()
        self._own = None
        self._leave(in_order=True)

    def close(self, *, exchange: bool = True) -> None:
        """Leave the group and the run; all ranks of the group call it. Idempotent.

        Args:
            exchange: first exchange the steps that were not exchanged yet.

        Raises:
            WorkerLostError: the root was lost before the exchange ended; this rank has left.
        """
        if is_first := not self._is_closed:
            self.train()
            with torch.no_grad():
                if exchange:
                    self._share_rest()
                self._settle()
        self._leave(in_order=is_first)

    def _share_rest(self) -> None:
        self._exchange.broadcast.announce_end(self._rounds.steps)
        if self.steps > self._shared_steps:
            self.exchange()
        self._settle()

    def _leave(self, *, in_order: bool) -> None:
        self._mark_closed()
        self._exchange.close()
        self._rounds.close(in_order=in_order)
        self._role.close(exchange=False)

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Close; after an error leave a process group without a last broadcast."""
        if error is None:
            self.close()
            return
        self.train()
        if self._host_mean is not None:  # in a process group, this could block for ever
            with suppress(WorkerLostError, StepMismatchError):  # the first error says more
                self._settle()
        self._leave(in_order=False)

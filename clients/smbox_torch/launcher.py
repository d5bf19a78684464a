"""Plays a cluster on one host: a memory node, N x P workers, and an end for all of them.

The workers see what ``torchrun`` would tell them, and SMBOX_ADDRESS. With more than one node
SMBOX_TRANSPORT=tcp keeps them from mapping memory that on a real cluster they could not map.
The first worker that fails ends all; with restarts left, all start again and find the memory
as it was, because the node runs on. A node that dies is started again on the same memory.
"""

from __future__ import annotations

import selectors
import signal
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from smbox_torch.board import REFRESH_S, Board
from smbox_torch.children import Child, Lines, described, end_all, forget, listen
from smbox_torch.cluster import Plan, free_port, worker_env
from smbox_torch.node_keeper import NodeKeeper
from smbox_torch.reporter import parse

INTERRUPTED: Final = 130


@dataclass
class Launcher:
    """One run, from its memory node to its exit code.

    Args:
        plan: what to start.
        board: where to show it.
        env: environment that workers and node inherit.
    """

    plan: Plan
    board: Board
    env: Mapping[str, str]
    _node: NodeKeeper | None = None
    _workers: list[Child] = field(default_factory=list)

    def run(self) -> int:
        """Run to the end; nothing that was started outlives this call.

        Returns:
            0, the exit code of the worker that failed first (128 + signal if one killed it),
            or 130 after an interrupt.

        Raises:
            ConnectError: the memory node did not start; nothing is left.
        """
        with terminable():
            try:
                return self._run()
            except KeyboardInterrupt:
                self.board.note("interrupted; ending all workers")
                return INTERRUPTED
            finally:
                try:
                    end_all(self._workers, self.plan.grace_s)
                finally:
                    if self._node:
                        self._node.close()

    def _run(self) -> int:
        address = self.plan.address
        if address is None:
            self._node = NodeKeeper(self.plan, self.env, self.board.note)
            self._node.await_ready()
            address = self._node.address
        run = {
            "TORCHELASTIC_RUN_ID": uuid.uuid4().hex,
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(free_port()),
            "SMBOX_ADDRESS": address,
        }
        code = 0
        for restart in range(self.plan.restarts + 1):
            failed = self._attempt(run, restart)
            if failed is None:
                return 0
            self._tell(failed, restart)
            code = self._workers[failed].exit_code or 0
        return code if code > 0 else 128 - code

    def _attempt(self, run: Mapping[str, str], restart: int) -> int | None:
        """Start all workers and wait for them; returns the rank that failed first, if any."""
        self._workers = []
        for rank in range(self.plan.workers):
            env = worker_env(self.plan, self.env, rank, run=run, restart=restart)
            self._workers.append(self._start_worker(rank, env))
            self.board.state(rank, "running")
        failed = self._watch()
        if failed is not None:
            end_all(self._workers, self.plan.grace_s)
            for rank, worker in enumerate(self._workers):
                if rank != failed and worker.exit_code:
                    self.board.state(rank, f"ended: {described(worker.exit_code)}")
        return failed

    def _start_worker(self, rank: int, env: Mapping[str, str]) -> Child:
        return Child(
            self.plan.command,
            env,
            on_line=lambda line: self.board.line(rank, line),
            on_report=lambda line: self.board.report(rank, parse(line)),
        )

    def _watch(self) -> int | None:
        """Wait until all workers have ended well, or one has not."""
        alive = set(range(len(self._workers)))
        with selectors.DefaultSelector() as selector:
            for worker in self._workers:
                listen(selector, worker)
            if self._node:
                listen(selector, self._node.child)
            while alive:
                ready = selector.select(REFRESH_S)
                for key, _ in ready:
                    if isinstance(key.data, Lines) and not key.data.read():
                        selector.unregister(key.fd)
                ended = {key.data.pid for key, _ in ready if isinstance(key.data, Child)}
                if self._node and self._node.child.pid in ended:
                    self._node.restart(selector)
                alive, failed = self._look(selector, alive, ended)
                if failed is not None:
                    return failed
                self.board.refresh()
        return None

    def _look(
        self, selector: selectors.BaseSelector, alive: set[int], ended: set[int]
    ) -> tuple[set[int], int | None]:
        """Take note of workers that have ended; returns who is left and who failed."""
        gone = [rank for rank in sorted(alive) if self._workers[rank].pid in ended]
        for rank in gone:
            worker = self._workers[rank]
            forget(selector, worker)
            worker.reap()
            code = worker.exit_code or 0
            self.board.state(rank, f"failed: {described(code)}" if code else "done")
        # A worker that a signal killed did not fail because another one had gone.
        failed = sorted(
            (rank for rank in gone if self._workers[rank].exit_code),
            key=lambda rank: (self._workers[rank].exit_code or 0) > 0,
        )
        return alive - set(gone), failed[0] if failed else None

    def _tell(self, failed: int, restart: int) -> None:
        node, local_rank = divmod(failed, self.plan.per_node)
        how = described(self._workers[failed].exit_code or 0)
        left = self.plan.restarts - restart
        then = f"starting all again ({left} restarts left)" if left else "all workers are ended"
        self.board.note(f"rank {failed} (node {node}, local rank {local_rank}): {how}; {then}")


@contextmanager
def terminable() -> Iterator[None]:
    """Make SIGTERM end what is inside like an interrupt, so that its ``finally`` runs."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)

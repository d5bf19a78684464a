"""Plays a cluster on one host: memory nodes, N x P workers, and an end for all of them.

The workers learn their places by SMBOX_ variables. With more than one node SMBOX_TRANSPORT=tcp
keeps them from mapping memory that on a real cluster they could not map. After a failure all
end, or start again, or the others go on (``OnFailure``); a worker that starts again finds the
memory as it was, because the node runs on. A node that dies starts again on the same memory.
"""

from __future__ import annotations

import os
import signal
import termios
import uuid
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Final

from smbox_torch.board import Board
from smbox_torch.cluster import OnFailure, Plan, Run, free_port
from smbox_torch.node_keeper import NodeKeeper
from smbox_torch.workers import STDIN, Workers, readable_stdin

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
    _nodes: list[NodeKeeper] = field(default_factory=list)
    _workers: Workers | None = None

    def run(self) -> int:
        """Run to the end; nothing that was started outlives this call.

        Returns:
            0, the exit code of the worker that failed first and was not started again (128 +
            signal if one killed it), or 130 after an interrupt.

        Raises:
            ConnectError: a memory node did not start; nothing is left.
        """
        with terminable(), terminal_kept():
            try:
                return self._run()
            except KeyboardInterrupt:
                self.board.note("interrupted; ending all workers")
                return INTERRUPTED
            finally:
                try:
                    if self._workers:
                        self._workers.end()
                finally:
                    with ExitStack() as ends:  # each, whatever another one does
                        for node in self._nodes:
                            ends.callback(node.close)

    def _run(self) -> int:
        address = self.plan.address
        if address is None:
            address = self._start_nodes()
        run = Run(uuid.uuid4().hex, address, free_port(), self.plan.master_addr)
        is_all = self.plan.on_failure is OnFailure.RESTART_ALL
        code = 0
        for restart in range(self.plan.restarts_max + 1 if is_all else 1):
            self._workers = Workers(self.plan, self.board, self.env, run, restart)
            self._workers.watch(self._nodes)
            code = self._workers.exit_code
            if not code:
                break
        return code if code >= 0 else 128 - code

    def _start_nodes(self) -> str:
        """Start the memory nodes; return the address of all of them."""
        for node_id in range(self.plan.memory_nodes):
            self._nodes.append(NodeKeeper(self.plan, self.env, self.board.note, node_id))
        for node in self._nodes:
            node.await_ready()
        return ",".join(node.address for node in self._nodes)


@contextmanager
def terminable() -> Iterator[None]:
    """Make signals that end a process end what is inside like an interrupt: ``finally`` runs.

    SIGHUP comes when the terminal is closed; under ``nohup`` it stays ignored.
    """

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = {signal.SIGTERM: signal.signal(signal.SIGTERM, interrupt)}
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        before[signal.SIGHUP] = signal.signal(signal.SIGHUP, interrupt)
    try:
        yield
    finally:
        for sign, handler in before.items():
            signal.signal(sign, handler)


@contextmanager
def terminal_kept() -> Iterator[None]:
    """Give a terminal back as it was: a worker that was killed may have changed its mode."""
    is_ours = os.isatty(STDIN) and readable_stdin() == STDIN
    before = termios.tcgetattr(STDIN) if is_ours else None
    try:
        yield
    finally:
        if before is not None and readable_stdin() == STDIN:
            termios.tcsetattr(STDIN, termios.TCSADRAIN, before)

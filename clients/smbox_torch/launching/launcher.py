"""The launcher: runs memory nodes and workers on one or several hosts, and ends them all.

The workers learn their places by SMBOX_ variables. With more than one node that is played here
SMBOX_TRANSPORT=tcp keeps them from mapping memory that a real cluster could not map. After a
failure all end, or start again, or the others go on (``OnFailure``); a worker that starts again
finds the memory as it was, because the node runs on. A node that dies starts again on the same
memory.
"""

from __future__ import annotations

import os
import termios
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from smbox_torch.launching.cluster import OnFailure, Plan, Run
from smbox_torch.launching.display import Display
from smbox_torch.launching.hosts import travelling
from smbox_torch.launching.interrupts import terminable
from smbox_torch.launching.local_host import LOOPBACK
from smbox_torch.launching.serving import Serving, serving
from smbox_torch.launching.workers import STDIN, Workers, readable_stdin

INTERRUPTED: Final = 130


@dataclass
class Launcher:
    """One run, from its memory node to its exit code.

    Args:
        plan: what to start.
        display: where to show it.
        env: environment that workers and node inherit.
    """

    plan: Plan
    display: Display
    env: Mapping[str, str]

    def run(self) -> int:
        """Run to the end; nothing that was started outlives this call.

        Returns:
            0, the exit code of the worker that failed first and was not started again (128 +
            signal if one killed it), or 130 after an interrupt.

        Raises:
            ConnectError: a host cannot be entered, or a memory node did not start; nothing is
                left.
            ConfigError: a host lacks the folder or the command; nothing is left.
        """
        with terminable(), terminal_kept():
            try:
                env = travelling(self.env) if self.plan.hosts else self.env
                with serving(self.plan, env, self.display.note) as served:
                    return self._run(served, env)
            except KeyboardInterrupt:
                return INTERRUPTED

    def _run(self, served: Serving, env: Mapping[str, str]) -> int:
        run = self._shared(served)
        is_all = self.plan.on_failure is OnFailure.RESTART_ALL
        code = 0
        for restart in range(self.plan.restarts_max + 1 if is_all else 1):
            workers = Workers(self.plan, self.display, env, served, run, restart)
            try:
                workers.watch()
            except KeyboardInterrupt:
                self.display.note("interrupted; ending all workers")
                raise
            finally:
                workers.end()
            code = workers.exit_code
            if not code:
                break
        return code if code >= 0 else 128 - code

    def _shared(self, served: Serving) -> Run:
        """Say what all workers are told alike; rank 0 may serve torch's store in its host."""
        first = self.plan.places[0].host
        master_addr = self.plan.hosts[first].address if self.plan.hosts else LOOPBACK
        port = served.hosts[first].free_port
        return Run(uuid.uuid4().hex, served.address, port, master_addr)


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

"""The launcher: runs memory nodes and workers on one or several hosts, and ends them all.

SMBOX_ variables tell the workers their rank, host and address. With several simulated nodes,
SMBOX_TRANSPORT=tcp keeps workers from mapping memory that they could not map in a real cluster.
``OnFailure`` says whether all workers end or restart after a failure, or the others continue. A
restarted worker finds the memory as it was, because the memory node keeps running. A node that
dies is restarted on the same memory. One that is stopped removes its memory, which ends the
run.
"""

from __future__ import annotations

import os
import termios
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
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
    """One run, from the start of its memory nodes to its exit code.

    Args:
        plan: the processes to start.
        display: shows the workers.
        env: environment that workers and memory nodes inherit.
    """

    plan: Plan
    display: Display
    env: Mapping[str, str]

    def run(self) -> int:
        """Run to the end; all started processes have ended when this returns.

        Returns:
            0; the exit code of the first worker that failed and was not restarted (128 + signal
            if a signal killed it); or 130 after an interrupt.

        Raises:
            ConnectError: a host cannot be reached, or a memory node did not start; nothing is
                left.
            ConfigError: a host lacks the folder or the command; nothing is left.
        """
        with terminable(), terminal_kept():
            try:
                env = travelling(self.env) if self.plan.hosts else self.env
                env = {**env, "PYTHONIOENCODING": "utf-8"}  # what the launcher decodes
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
        """Return the settings of all workers; rank 0 may serve torch's store on its host."""
        first = self.plan.places[0].host
        master_addr = self.plan.hosts[first].address if self.plan.hosts else LOOPBACK
        port = served.hosts[first].free_port
        return Run(uuid.uuid4().hex, served.address, port, master_addr)


@contextmanager
def terminal_kept() -> Iterator[None]:
    """Restore the mode of the terminal, which a killed worker may have changed."""
    is_ours = os.isatty(STDIN) and readable_stdin() == STDIN
    before = termios.tcgetattr(STDIN) if is_ours else None
    try:
        yield
    finally:
        if before is not None and readable_stdin() == STDIN:
            with suppress(termios.error):  # the terminal was closed
                termios.tcsetattr(STDIN, termios.TCSADRAIN, before)

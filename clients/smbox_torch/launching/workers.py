"""The workers of one start of a run, and the handling of their failures."""

from __future__ import annotations

import os
import selectors
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from smbox_torch.launching.children import (
    Lines,
    Pipe,
    Running,
    described,
    end_all,
    forget,
    listen,
)
from smbox_torch.launching.cluster import OnFailure, Plan, Run, worker_env
from smbox_torch.launching.display import REFRESH_S, Display
from smbox_torch.launching.interrupts import held
from smbox_torch.launching.serving import Serving
from smbox_torch.workers.reporter import parse

STDIN: Final = 0


@dataclass
class Workers:
    """All workers, by rank.

    Args:
        plan: the processes to start.
        display: shows the workers.
        env: environment that they inherit.
        serving: the hosts and memory nodes.
        run: settings that they share.
        restart: how often all workers have been restarted.

    Attributes:
        failed: the first rank that failed and was not restarted, or None.
        exit_code: exit code of that worker, as in Child; 0 without one.
    """

    plan: Plan
    display: Display
    env: Mapping[str, str]
    serving: Serving
    run: Run
    restart: int
    failed: int | None = None
    exit_code: int = 0
    _children: list[Running] = field(default_factory=list)
    _again: list[int] = field(default_factory=list)
    """How often each worker alone has been restarted."""

    def watch(self) -> None:
        """Start all workers and wait until all have ended, or a failure ends all.

        A memory node that dies is restarted.

        Raises:
            ConnectError: a memory node cannot be restarted, or the host of a worker is lost.
        """
        for rank in range(self.plan.workers):
            self._again.append(0)
            with held():  # an interrupt in between would leave the worker running
                self._children.append(self._start(rank))
        with selectors.DefaultSelector() as selector:
            for agent in self.serving.agents:
                if agent.exit_code is None:  # an earlier start may have lost it
                    listen(selector, agent)
            for child in self._children:
                listen(selector, child)
            for node in self.serving.nodes:
                listen(selector, node.child)
            self._watch(selector)
        if self.failed is not None:
            self.end()

    def end(self) -> None:
        """End the workers that still run, and show how they ended."""
        running = [rank for rank, child in enumerate(self._children) if child.exit_code is None]
        end_all(self._children, self.plan.grace_s)
        for rank in running:
            code = self._code(rank)
            self.display.state(rank, f"ended: {described(code)}" if code else "done")

    def _start(self, rank: int) -> Running:
        host = self.serving.hosts[self.plan.places[rank].host]
        env = worker_env(
            self.plan,
            self.env,
            rank,
            run=self.run,
            restart=self.restart,
            worker_restart=self._again[rank],
        )
        child = host.start(
            host.command,
            self.display.env(rank) | env,
            self.display.output(rank),
            Lines(lambda line: self.display.report(rank, parse(line))),
            stdin=subprocess.DEVNULL if rank else readable_stdin(),
        )
        self.display.state(rank, "running")
        return child

    def _watch(self, selector: selectors.BaseSelector) -> None:
        alive = set(range(self.plan.workers))
        while alive and (self.failed is None or self._continues):
            ready = selector.select(REFRESH_S)
            for key, _ in ready:
                if isinstance(key.data, Pipe) and not key.data.read():
                    selector.unregister(key.fd)
            ended = [key.data for key, _ in ready if not isinstance(key.data, Pipe)]
            self.serving.take_ends(ended, selector)
            over = [rank for rank in sorted(alive) if self._children[rank] in ended]
            gone = [rank for rank in over if self._reap(rank, selector)]
            alive -= set(gone)
            # Killed workers first: they did not fail because another worker was gone.
            for rank in sorted(gone, key=lambda rank: self._code(rank) >= 0):
                if self._code(rank) and self._take_failure(rank, selector, len(alive)):
                    alive.add(rank)
            self.display.refresh()

    @property
    def _continues(self) -> bool:
        return self.plan.on_failure in {OnFailure.CONTINUE, OnFailure.RESTART}

    def _code(self, rank: int) -> int:
        return self._children[rank].exit_code or 0

    def _reap(self, rank: int, selector: selectors.BaseSelector) -> bool:
        child = self._children[rank]
        if not child.reap():  # a debugger or strace has not reaped it yet
            return False
        forget(selector, child)
        code = self._code(rank)
        self.display.state(rank, f"failed: {described(code)}" if code else "done")
        return True

    def _take_failure(self, rank: int, selector: selectors.BaseSelector, others: int) -> bool:
        """Handle a failed worker as the plan says; return whether it was restarted."""
        left = self.plan.restarts_max - self._again[rank]
        is_lost = self.serving.hosts[self.plan.places[rank].host].is_lost
        if self.plan.on_failure is OnFailure.RESTART and left > 0 and not is_lost:
            self._tell(rank, f"starting it again (restarts left: {left})")
            self._again[rank] += 1
            with held():
                self._children[rank] = self._start(rank)
            listen(selector, self._children[rank])
            return True
        if self.failed is None:
            self.failed, self.exit_code = rank, self._code(rank)
        elif not self._continues:
            return False  # it ended because of the first failure
        self._tell(rank, self._outcome(others))
        return False

    def _outcome(self, others: int) -> str:
        """Return what happens to the other workers, as text."""
        if self._continues:
            return "the others continue" if others else "no worker is left"
        left = self.plan.restarts_max - self.restart
        return (
            f"starting all again (restarts left: {left})" if left else "all workers are ended"
        )

    def _tell(self, rank: int, then: str) -> None:
        place = self.plan.places[rank]
        where = f"{self.plan.named(place)}, local rank {place.local_rank}"
        self.display.note(f"rank {rank} ({where}): {described(self._code(rank))}; {then}")


def readable_stdin() -> int:
    """Return this process's standard input, or DEVNULL where it must not be read.

    It must not be read if it is closed, or a terminal of another job of the shell. If it was
    closed when this process began, its number may belong to another file.
    """
    if sys.__stdin__ is None:
        return subprocess.DEVNULL
    try:
        if os.isatty(STDIN) and os.tcgetpgrp(STDIN) != os.getpgrp():
            return subprocess.DEVNULL
        os.fstat(STDIN)
    except OSError:
        return subprocess.DEVNULL
    return STDIN

from __future__ import annotations

import io
import os
import selectors
from types import SimpleNamespace

from rich.console import Console

from smbox_torch.launching.children import listen
from smbox_torch.launching.cluster import Plan, Run
from smbox_torch.launching.display import Display
from smbox_torch.launching.serving import Serving
from smbox_torch.launching.workers import Workers


class Traced:
    """A process that has ended, and that its tracer reaps only some time later."""

    pipes = ()

    def __init__(self) -> None:
        self.pidfd = os.eventfd(1)  # readable
        self.own = [self.pidfd]
        self.exit_code: int | None = None
        self.asked = 0

    def reap(self) -> bool:
        self.asked += 1
        if self.asked == 3:
            self.exit_code = 7
            os.close(self.pidfd)
        return self.exit_code is not None


def test_a_worker_that_its_tracer_reaps_late_fails_with_its_exit_code():
    host = SimpleNamespace(command=["x"], is_lost=False, start=lambda *_, **__: Traced())
    display = Display([0], Console(file=io.StringIO()))
    workers = Workers(Plan(["x"]), display, {}, Serving([host], []), Run("r", "", 1), 0)
    workers.watch()
    assert (workers.failed, workers.exit_code) == (0, 7)


def test_a_connection_that_its_tracer_reaps_late_is_watched_until_then():
    """Nobody reaped it, and the run waited for ever for the workers of its host."""
    agent = Traced()
    served = Serving([], [agent])
    with selectors.DefaultSelector() as selector:
        listen(selector, agent)
        while agent.exit_code is None:
            ready = selector.select(0)
            assert ready
            served.take_ends([key.data for key, _ in ready], selector)
        assert not selector.get_map()

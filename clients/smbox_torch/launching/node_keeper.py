"""A memory node of a launcher, restarted when it dies.

A node that is stopped removes its memory, so it cannot be restarted on it.
"""

from __future__ import annotations

import selectors
import signal
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from smbox.errors import ConfigError, ConnectError
from smbox_torch.launching.children import Lines, Running, described, end_all, forget, listen
from smbox_torch.launching.cluster import Plan
from smbox_torch.launching.interrupts import held
from smbox_torch.launching.local_host import LOOPBACK, StartingHost
from smbox_torch.launching.node_deaths import NodeDeaths
from smbox_torch.workers.reporter import parse

READY_S: Final = 60.0
POLL_S: Final = 0.1
STOPPED_MESSAGE: Final = (
    "the memory node was stopped by SIGTERM or SIGINT, and a node that stops removes its"
    " memory: start the run again, and continue from a checkpoint"
)
USAGE_ERROR: Final = 2
"""Exit code of memnode for invalid arguments."""


class NodeKeeper:
    """A memory node that is restarted, on the same memory and address, when it dies.

    Args:
        plan: has the command, size and keys of the node.
        host: host of the node.
        env: environment of the node.
        note: called with lines to show.
        node_id: id of the node.

    Raises:
        ConnectError: the host is lost.

    Attributes:
        child: the node's process.
        address: address of the node.
    """

    def __init__(
        self,
        plan: Plan,
        host: StartingHost,
        env: Mapping[str, str],
        note: Callable[[str], None],
        node_id: int = 0,
    ) -> None:
        self._plan = plan
        self._host = host
        self._node_id = node_id
        self._env = env
        self._name = f"run-{uuid.uuid4().hex[:12]}"
        self._ready: dict[str, Any] = {}
        self._deaths = NodeDeaths()
        on = plan.hosts[plan.memory_hosts[node_id]] if plan.hosts else None
        self._where = {"host": on.name} if on else {}
        self._note = (lambda text: note(f"host {on.name}: {text}")) if on else note
        self._memory = (on.memory if on else "") or plan.memory
        bind = on.bind() if on else f"tcp://{LOOPBACK}:0"
        self.child: Running = self._start(bind)

    @property
    def address(self) -> str:
        """Address of the node; a restart does not change it."""
        return str(self._ready["address"])

    def await_ready(self) -> None:
        """Wait for the node's ready line.

        Raises:
            ConfigError: the node refused its arguments.
            ConnectError: it ended, or was not ready within READY_S.
        """
        deadline_s = time.monotonic() + READY_S
        while "address" not in self._ready:
            if self.child.reap():
                how = described(self.child.exit_code or 0)
                if self.child.exit_code == USAGE_ERROR:
                    raise ConfigError(
                        f"the memory node refused its arguments: {how}", **self._where
                    )
                raise ConnectError(f"the memory node did not start: {how}", **self._where)
            if time.monotonic() > deadline_s:
                raise ConnectError(
                    "the memory node is not ready", timeout_s=READY_S, **self._where
                )
            with selectors.DefaultSelector() as selector:
                listen(selector, self.child)
                selector.select(POLL_S)
            self.child.pipes[0].read()

    def restart(self, selector: selectors.BaseSelector) -> None:
        """Restart the node after its end, and register it with ``selector``.

        Raises:
            ConnectError: it was stopped or died too often, or the restart failed.
        """
        forget(selector, self.child)
        self.child.reap()
        if self.child.exit_code == 0:
            raise ConnectError(STOPPED_MESSAGE, **self._where)
        how = described(self.child.exit_code or 0)
        self._deaths.count(last=how, **self._where)
        address, self._ready = self.address, {}
        with held():  # an interrupt in between would leave the node running
            self.child = self._start(address)
        self._note(f"the memory node died ({how}); starting it again on its memory")
        self.await_ready()
        listen(selector, self.child)

    def _start(self, bind: str) -> Running:
        argv = [*(self._plan.memnode or (self._host.python, "-P", "-m", "memnode"))]
        argv += ["--bind", bind, "--name", self._name, "--json"]
        argv += ["--parent-pid", str(self._host.pid), "--node-id", str(self._node_id)]
        if self._memory:
            argv += ["--memory", self._memory]
        if self._plan.keys is not None:
            argv += ["--keys", self._plan.keys]
        if self._plan.insecure:
            argv += ["--insecure"]
        self._deaths.start()
        return self._host.start(
            argv,
            self._env,
            Lines(self._hear),
            at_launchers_death=signal.SIGTERM,  # the node removes its memory
            node=self._name,
        )

    def remove(self) -> None:
        """Remove the memory of a node that has ended, even if the node could not."""
        self._host.remove(self._name)

    def _hear(self, line: str) -> None:
        event = parse(line)
        if event.get("event") == "ready":
            self._ready = event
        elif line:
            self._note(f"memory node: {line}")


def close_all(keepers: Sequence[NodeKeeper], grace_s: float) -> None:
    """End all nodes at the same time, and remove their memory.

    Args:
        keepers: keepers of the nodes.
        grace_s: seconds between SIGTERM and SIGKILL; another interrupt ends the wait.
    """
    try:
        end_all([keeper.child for keeper in keepers], grace_s)
    finally:
        for keeper in keepers:
            keeper.remove()

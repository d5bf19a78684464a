"""``memnode --nodes N``: several memory nodes of one host that start, stop and die together.

Each node is a process with its own id and addresses; regions can be striped over the nodes. If
a node dies, or the process of the group is killed, all other nodes are killed, too. Their
memory stays in place, and a group that starts under the same names continues with it.
"""

from __future__ import annotations

import json
import logging
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from typing import Final

from memnode.config import Bind, NodeConfig
from memnode.server import Wakeup, default_memory
from smbox.config import MEMORY_NBYTES_MIN
from smbox.errors import ConfigError, SmboxError
from smbox.limits import refusal
from smbox.memory import layout, process
from smbox.memory.segment import listing

NODES_MAX: Final = 256
STOP_S: Final = 60.0
"""Seconds that a node may take to stop; then it is killed."""

_LOG = logging.getLogger(__name__)


class StartError(SmboxError):
    """A node of the group did not start; no node runs, and existing memory is unchanged.

    Its fact ``exit_status`` is the exit status of that node.
    """


def members(config: NodeConfig, count: int) -> list[NodeConfig]:
    """Return the configuration of each node, with consecutive ids, ports and names.

    Without a memory limit, the nodes share what is free; a limit is at least 1 MiB.

    Args:
        config: of the first node; each node's index is appended to the name.
        count: number of nodes.

    Raises:
        ConfigError: invalid count, or a port or id is out of range.
    """
    if not 1 <= count <= NODES_MAX:
        raise ConfigError(f"a group has 1 to {NODES_MAX} nodes", nodes=count)
    nodes = []
    for index in range(count):
        node = replace(
            config,
            binds=tuple(_shifted(bind, index) for bind in config.binds),
            name=None if config.name is None else f"{config.name}-{index}",
            node_id=config.node_id + index,
            parent_pid=None,  # the group stops its nodes
        )
        if node.memory_nbytes is None:
            share_nbytes = max(default_memory(node.known_name, count), MEMORY_NBYTES_MIN)
            node = replace(node, memory_nbytes=share_nbytes)
        nodes.append(node)
    return nodes


def _shifted(bind: Bind, index: int) -> Bind:
    if bind.scheme == "ipc":
        return Bind.parse(f"{bind.address}.{index}")
    port = bind.port + index if bind.port else 0
    return Bind.parse(f"tcp://{bind.host}:{port}")


class NodeGroup:
    """Nodes in child processes.

    Attributes:
        addresses: the first address of each node, by id.

    Args:
        configs: of the nodes.
        log_level: of each node.
        parent_pid: stop when this process ends; None: never.
    """

    def __init__(
        self, configs: Sequence[NodeConfig], log_level: str, parent_pid: int | None
    ) -> None:
        self.addresses: list[str] = []
        self._configs = configs
        self._log_level = log_level
        self._wakeup = Wakeup(parent_pid)
        self._children: list[subprocess.Popen[bytes]] = []

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Start all nodes; at the end of the block no node runs.

        Raises:
            StartError: one did not start.
            SystemLimitError: this process can start no more processes; no node was left.
        """
        with self._wakeup.catching_signals(), ExitStack() as stack:
            stack.callback(self._stop, signal.SIGKILL)  # stopped nodes have ended already
            has_memory = [_has_memory(config) for config in self._configs]
            try:
                self._start()
            except BaseException:
                for child, is_old in zip(self._children, has_memory, strict=False):
                    if is_old:
                        child.kill()  # a clean stop would remove the existing memory
                self._stop()
                raise
            yield

    def run(self) -> int | None:
        """Serve until a signal comes or the parent ends, then stop all nodes.

        Returns:
            None after a clean stop; the exit status of a node that ended by itself.
        """
        for child in self._children:
            self._wakeup.watch(child.pid)
        poll = select.poll()  # select() takes no descriptor above 1023
        for fd in self._wakeup.fds:
            poll.register(fd, select.POLLIN)
        while not self._wakeup.is_stopping:
            for fd, _ in poll.poll():
                self._wakeup.handle(fd)
            ended = next((c for c in self._children if c.poll() is not None), None)
            if ended is not None and not self._wakeup.is_stopping:
                _LOG.error("memory node %d ended: killing the others", ended.pid)
                return ended.returncode
        return self._stop()

    def _start(self) -> None:
        for config in self._configs:
            command = [sys.executable, "-P", "-m", "memnode", *arguments_of(config)]
            command += ["--json", "--log-level", self._log_level]
            try:
                child = subprocess.Popen(
                    command,
                    stdout=subprocess.PIPE,
                    start_new_session=True,
                    preexec_fn=partial(_die_with, os.getpid()),  # noqa: PLW1509 - no threads
                )
            except OSError as error:
                raise refusal("start a memory node", error) from error
            self._children.append(child)
        for child in self._children:
            assert child.stdout is not None
            with child.stdout as output:
                line = output.readline()
            if not line.startswith(b"{"):
                raise StartError(
                    "a memory node of the group does not start, or prints before its ready"
                    " line; see its messages above",
                    line=line.decode(errors="replace"),
                    exit_status=0 if line else child.wait(),
                )
            self.addresses.append(json.loads(line)["address"])

    def _stop(self, number: signal.Signals = signal.SIGTERM) -> int | None:
        for child in self._children:
            child.send_signal(number)
        for child in self._children:
            try:
                child.wait(STOP_S)
            except subprocess.TimeoutExpired:
                _LOG.exception("memory node %d does not stop: killing it", child.pid)
                child.kill()
                child.wait()
        return next((child.returncode for child in self._children if child.returncode), None)


def _die_with(group_pid: int) -> None:
    """Kill this child when the group's process dies; a clean stop would remove its memory."""
    process.signal_on_parent_death(signal.SIGKILL)
    if os.getppid() != group_pid:  # the group died before this call
        os.kill(os.getpid(), signal.SIGKILL)


def _has_memory(config: NodeConfig) -> bool:
    """Return whether memory of a node of this name exists, running or not."""
    name = config.known_name
    return name is not None and bool(listing(layout.name_of(name)))


def arguments_of(config: NodeConfig) -> list[str]:
    """Return the command line of a configuration."""
    words = [word for bind in config.binds for word in ("--bind", bind.address)]
    for option, value in (
        ("--name", config.name),
        ("--memory", config.memory_nbytes),
        ("--keys", config.keys),
        ("--node-id", config.node_id),
    ):
        if value is not None:
            words += [option, str(value)]
    switches = (("--keep", config.keep), ("--insecure", config.insecure))
    return words + [option for option, is_set in switches if is_set]

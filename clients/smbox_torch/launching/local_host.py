"""The local host: the launcher starts processes as its own children."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from smbox.memory.superblock import remove_all
from smbox_torch.launching.children import Child, Running, Sink

LOOPBACK: Final = "127.0.0.1"


class StartingHost(Protocol):
    """A host in which a launcher starts processes.

    Attributes:
        command: program and arguments of a worker there.
        python: interpreter there that has smbox.
        pid: process there; when it ends, all other processes there end.
        free_port: TCP port that was free there when it was chosen.
    """

    command: Sequence[str]
    python: str
    pid: int
    free_port: int

    @property
    def is_lost(self) -> bool:
        """Return whether the host is lost, so that no process can be started there."""

    def start(
        self,
        argv: Sequence[str],
        env: Mapping[str, str],
        output: Sink,
        reports: Sink | None = None,
        *,
        stdin: int = subprocess.DEVNULL,
        at_launchers_death: signal.Signals = signal.SIGKILL,
        node: str = "",
    ) -> Running:
        """Start a process, as Child does.

        Args:
            argv: program and arguments.
            env: its entire environment, except for what the host adds.
            output: receives its output.
            reports: receives its reports.
            stdin: descriptor of its standard input, if the host can pass one on.
            at_launchers_death: signal that the process gets when the launcher dies.
            node: name of the memory node that it runs; "": none.

        Raises:
            ConnectError: the host is lost.
        """

    def remove(self, node: str) -> None:
        """Remove the memory that a memory node that has ended left in /dev/shm."""


@dataclass
class LocalHost:
    """The host of the launcher; attributes as in StartingHost."""

    command: Sequence[str]
    python: str = field(default_factory=lambda: sys.executable)
    is_lost: bool = False

    def __post_init__(self) -> None:
        self.pid = os.getpid()
        self.free_port = free_port()

    def start(
        self,
        argv: Sequence[str],
        env: Mapping[str, str],
        output: Sink,
        reports: Sink | None = None,
        *,
        stdin: int = subprocess.DEVNULL,
        at_launchers_death: signal.Signals = signal.SIGKILL,
        node: str = "",  # noqa: ARG002 - the caller removes its memory
    ) -> Running:
        """Start a process; see StartingHost."""
        return Child(
            argv, env, output, reports, stdin=stdin, at_launchers_death=at_launchers_death
        )

    def remove(self, node: str) -> None:
        """Remove the memory that a memory node that has ended left in /dev/shm."""
        remove_all(node)


def free_port() -> int:
    """Return a free TCP port."""
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        port: int = probe.getsockname()[1]
        return port

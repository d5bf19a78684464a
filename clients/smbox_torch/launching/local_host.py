"""The local host: the launcher starts processes as its own children."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from smbox.memory import segment
from smbox_torch.launching.children import Child, Running, Sink

LOOPBACK: Final = "127.0.0.1"


class StartingHost(Protocol):
    """A host in which a launcher starts processes.

    Attributes:
        command: program and arguments of a worker there.
        python: interpreter there that has smbox.
        pid: of the process there with which all others end.
        free_port: TCP port that nobody used there when it was looked for.
    """

    command: Sequence[str]
    python: str
    pid: int
    free_port: int

    @property
    def is_lost(self) -> bool:
        """Return whether nothing can be started there any more."""

    def start(
        self,
        argv: Sequence[str],
        env: Mapping[str, str],
        output: Sink,
        reports: Sink | None = None,
        *,
        stdin: int = subprocess.DEVNULL,
        at_launchers_death: signal.Signals = signal.SIGKILL,
        segments: str = "",
    ) -> Running:
        """Start a process, as Child does.

        Args:
            argv: program and arguments.
            env: its whole environment, but for what the host adds.
            output: takes what it prints.
            reports: takes its reports.
            stdin: descriptor of its standard input, where the host can pass one on.
            at_launchers_death: the signal that it gets if the launcher is killed.
            segments: prefix of what it may leave in /dev/shm; "": nothing.

        Raises:
            ConnectError: the host is lost.
        """

    def remove(self, segments: str) -> None:
        """Remove what a process that has ended has left in /dev/shm."""


@dataclass
class LocalHost:
    """Attributes as of StartingHost."""

    command: Sequence[str]
    python: str = sys.executable
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
        segments: str = "",  # noqa: ARG002 - removed by whoever started it
    ) -> Running:
        """Start a process as StartingHost says."""
        return Child(
            argv, env, output, reports, stdin=stdin, at_launchers_death=at_launchers_death
        )

    def remove(self, segments: str) -> None:
        """Remove what a process that has ended has left in /dev/shm."""
        for left in segment.listing(segments):
            segment.unlink(left)


def free_port() -> int:
    """Return a TCP port that nobody uses now."""
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        port: int = probe.getsockname()[1]
        return port

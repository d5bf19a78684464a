"""A remote host: its agent (agent.py) starts processes for the launcher."""

from __future__ import annotations

import math
import os
import shlex
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from smbox.errors import ConfigError, ConnectError, SystemLimitError
from smbox_torch.launching.children import Child, Pipe, Sink, await_end, end_all
from smbox_torch.launching.frames import Kind, Ready, decode, encode
from smbox_torch.launching.host_command import ANSWER_S, POLL_S, HostCommand
from smbox_torch.launching.hosts import Host

READY_S: Final = 60.0
WORDS_MAX: Final = 5
"""Number of last lines from a host that the error of a failed connection contains."""

LOST: Final = 255
"""Exit code of a process whose host was lost, as of ssh."""


class RemoteChild:
    """A process that an agent has started; attributes as in Running.

    Args:
        host: host of the agent.
        number: number of the process in frames.
        output: receives its output.
        reports: receives its reports.
    """

    def __init__(
        self, host: RemoteHost, number: int, output: Sink, reports: Sink | None
    ) -> None:
        self._host = host
        self._number = number
        self._sinks = {Kind.OUTPUT: output} | ({Kind.REPORT: reports} if reports else {})
        self._ended: int | None = None
        self._deadline_s = math.inf  # for the answer to SIGKILL
        self.pidfd = os.eventfd(0)
        self.own: Sequence[int] = [self.pidfd]
        self.exit_code: int | None = None

    @property
    def pipes(self) -> Sequence[Pipe]:
        """The pipes of the agent."""
        return self._host.agent.pipes

    def take(self, kind: Kind, payload: bytes) -> None:
        """Handle a frame about the process."""
        if kind is Kind.EXIT:
            self.end(decode(payload, int))
        elif kind in self._sinks:
            self._sinks[kind].feed(payload)

    def end(self, exit_code: int) -> None:
        """Record the end of the process."""
        if self._ended is None:
            self._ended = exit_code
            os.eventfd_write(self.pidfd, 1)

    def reap(self) -> bool:
        """Return whether the process has ended, ``exit_code`` is known and its output taken."""
        if self._ended is None:
            is_late = time.monotonic() > self._deadline_s
            self._host.check_agent(is_late=is_late, is_answered=lambda: self._ended is not None)
        if self.exit_code is None and self._ended is not None:
            self.exit_code = self._ended
            for sink in self._sinks.values():
                sink.end()
            os.close(self.pidfd)
        return self.exit_code is not None

    def send(self, sign: signal.Signals) -> None:
        """Send a signal to the process and to its descendants in its session."""
        if self._ended is None:
            self._host.tell(Kind.SIGNAL, self._number, sign)
            if sign == signal.SIGKILL:
                self._deadline_s = time.monotonic() + ANSWER_S


class RemoteHost:
    """One host of the hosts file; attributes as in StartingHost.

    The constructor starts the command that connects to the host. ``await_ready`` waits for
    the agent, and ``close_all`` ends all processes.

    Args:
        host: its description in the file.
        words: command line of its workers; empty: it runs no workers.
        env: variables that are sent to the host.
        grace_s: seconds between SIGTERM and SIGKILL.
        note: called with lines to show.

    Raises:
        ConfigError: the command that connects cannot be started; nothing is left.
        SystemLimitError: this host can start no more processes; nothing is left.
    """

    def __init__(
        self,
        host: Host,
        words: Sequence[str],
        env: Mapping[str, str],
        grace_s: float,
        note: Callable[[str], None],
    ) -> None:
        self.host = host
        self.command: Sequence[str] = ()
        self.python = host.python or sys.executable
        self.pid = self.free_port = 0
        self._note = note
        self._said: deque[str] = deque(maxlen=WORDS_MAX)
        self._children: dict[int, RemoteChild] = {}
        self._count = 0
        self._refused = ""
        argv = [*host.enter, self.python, "-P", "-m", "smbox_torch.launching.agent"]
        order = {
            "folder": host.folder or os.getcwd(),
            "env": dict(env) | host.env,
            "words": list(words),
            "workers": host.workers,
            "grace_s": grace_s,
        }
        prepare = encode(Kind.PREPARE, 0, order)
        try:
            self._connection = HostCommand(argv, self._take, self._hear, self._lose)
        except SystemLimitError:
            raise
        except OSError as error:
            raise ConfigError(
                f"cannot connect to host {host.name!r} with {self._words()}: {error.strerror};"
                " correct `enter` or `python` of the host"
            ) from error
        self._connection.send(prepare)

    @property
    def agent(self) -> Child:
        """The local process that connects to the host."""
        return self._connection.process

    @property
    def is_lost(self) -> bool:
        """Return whether the host is lost, so that no process can be started there."""
        return self._connection.is_lost

    def await_ready(self) -> None:
        """Wait until the agent can start processes.

        Raises:
            ConnectError: the connection failed, or the agent did not answer within READY_S.
            ConfigError: the host lacks the folder or the command.
        """
        self._connection.wait(
            lambda: bool(self.pid or self._refused) or self.agent.reap(), READY_S
        )
        if self._refused:
            raise ConfigError(f"host {self.host.name!r}: {self._refused}")
        if self.pid:
            return
        self._connection.abandon("no reply")
        await_end([self.agent], time.monotonic() + ANSWER_S)  # reads its last output
        raise ConnectError(
            f"cannot connect to host {self.host.name!r} with {self._words()}, or"
            f" {self.python} has no smbox there: {self._connection.how}",
            said=" | ".join(self._said),
        )

    def start(
        self,
        argv: Sequence[str],
        env: Mapping[str, str],
        output: Sink,
        reports: Sink | None = None,
        *,
        stdin: int = subprocess.DEVNULL,  # noqa: ARG002 - stays on the launcher's host
        at_launchers_death: signal.Signals = signal.SIGKILL,
        node: str = "",
    ) -> RemoteChild:
        """Start a process without standard input; see StartingHost.

        Raises:
            ConnectError: the host is lost.
        """
        if self.is_lost:
            raise ConnectError("the connection to a host is lost", host=self.host.name)
        self._count += 1
        child = self._children[self._count] = RemoteChild(self, self._count, output, reports)
        order = {
            "argv": list(argv),
            "env": dict(env) | self.host.env,
            "at_death": at_launchers_death,
            "node": node,
        }
        self.tell(Kind.START, self._count, order)
        return child

    def remove(self, node: str) -> None:
        """Do nothing: the agent removes the memory of all nodes when it ends."""

    def tell(self, kind: Kind, number: int, value: Any) -> None:
        """Send a frame to the agent; a host that does not accept it in time is lost."""
        self._connection.send(encode(kind, number, value))
        self._connection.await_sent()

    def check_agent(self, *, is_late: bool, is_answered: Callable[[], bool]) -> None:
        """Detect the agent's end; abandon a host whose answer is late.

        Args:
            is_late: the answer is overdue.
            is_answered: returns whether the answer has arrived; if this process itself is late,
                the answer may still be in the pipe.
        """
        if is_late:
            self._connection.wait(is_answered, POLL_S)
            if not is_answered():
                self._connection.abandon(f"it has not answered for {ANSWER_S:g} s")
        self.agent.reap()

    def end_orders(self) -> bool:
        """Close the agent's input; return whether the agent now ends all its processes."""
        self._connection.end_orders()
        return bool(self.pid or self._refused)

    def _take(self, kind: Kind, number: int, payload: bytes) -> None:
        if kind is Kind.READY:
            found = decode(payload, Ready)
            self.command, self.python = found.command, found.python
            self.free_port, self.pid = found.free_port, found.pid
        elif kind is Kind.REFUSED:
            self._refused = decode(payload, str)
        elif number in self._children:
            self._children[number].take(kind, payload)
            if kind is Kind.EXIT:
                del self._children[number]

    def _lose(self) -> None:
        """Record the end of all processes of the agent, because the agent has ended."""
        if self.pid and not self._connection.is_closing:
            self._note(
                f"host {self.host.name}: its connection has ended ({self._connection.how})"
            )
        for child in self._children.values():
            child.end(LOST)

    def _hear(self, lines: list[str]) -> None:
        for line in filter(str.strip, lines):
            self._said.append(line)
            self._note(f"host {self.host.name}: {line}")

    def _words(self) -> str:
        return f"`{shlex.join(self.host.enter) or self.python}`"


def close_all(hosts: Sequence[RemoteHost], grace_s: float) -> None:
    """End all agents at the same time; each ends its processes.

    Args:
        hosts: the hosts; they cannot be used afterwards.
        grace_s: seconds between SIGTERM and SIGKILL; another interrupt ends the wait.
    """
    deadline_s = time.monotonic() + grace_s + ANSWER_S
    ready = [host.agent for host in hosts if host.end_orders()]
    all_agents = [host.agent for host in hosts]
    try:
        end_all([agent for agent in all_agents if agent not in ready], grace_s)
        await_end(ready, deadline_s)
    finally:
        end_all(all_agents, grace_s)

"""The agent on a remote host: starts processes for the launcher, and ends with it.

The command that connects to the host (``enter``) starts the agent. The agent receives and
sends frames on its standard input and output. Environment and arguments are sent in frames,
because ssh passes on no variables and gives its arguments to a shell. At the end of its input
(the launcher closed it, was killed or lost the connection) the agent ends all processes and
removes the memory of their memory nodes.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import sys
from dataclasses import dataclass, field
from typing import Any, Final

from msgspec.structs import asdict

from smbox.errors import ConfigError
from smbox.memory.superblock import remove_all
from smbox_torch.launching.children import Child, Pipe, end_all, forget, listen
from smbox_torch.launching.cluster import GRACE_S
from smbox_torch.launching.frames import BEGIN, Frames, Kind, Ready, encode, frame
from smbox_torch.launching.hosts import without_places
from smbox_torch.launching.interrupts import held, terminable
from smbox_torch.launching.local_host import free_port
from smbox_torch.launching.program import command_of

CANNOT_START: Final = 126
"""Exit code that shells use for a program that was found but could not be started."""


@dataclass
class Relay:
    """Sends the output or the reports of a process to the launcher."""

    agent: Agent
    kind: Kind
    number: int

    def feed(self, chunk: bytes) -> None:
        """Send the bytes to the launcher."""
        self.agent.write(frame(self.kind, self.number, chunk))

    def end(self) -> None:
        """Send nothing: the exit code follows."""


@dataclass
class Agent:
    """The processes of one launcher on this host.

    Args:
        orders: descriptor from which frames are read.
        events: descriptor to which frames are written.
    """

    orders: int
    events: int
    _children: dict[int, Child] = field(default_factory=dict)
    _nodes: set[str] = field(default_factory=set)
    _own: dict[str, str] = field(default_factory=dict)
    """Environment of the login on this host."""
    _threads: str = "1"
    _grace_s: float = GRACE_S
    _is_heard: bool = True

    def run(self) -> None:
        """Execute the launcher's frames until the input ends; then end all processes."""
        self.write(BEGIN)
        pipe = Pipe(self.orders, Frames(self._take))
        try:
            with selectors.DefaultSelector() as self._selector:
                self._selector.register(pipe.fd, selectors.EVENT_READ, pipe)
                while pipe.fd in self._selector.get_map():
                    self._turn()
        finally:
            try:
                end_all(self._children.values(), self._grace_s)
            finally:  # an interrupt may end the wait
                for node in self._nodes:
                    remove_all(node)

    def write(self, frames: bytes) -> None:
        """Send frames to the launcher; drop them once it has closed the pipe."""
        left = memoryview(frames)
        try:
            while left and self._is_heard:
                left = left[os.write(self.events, left) :]
        except OSError:
            self._is_heard = False

    def _turn(self) -> None:
        """Wait for events, and handle them."""
        ready = [key.data for key, _ in self._selector.select()]
        for pipe in ready:
            if isinstance(pipe, Pipe) and not pipe.read():
                self._selector.unregister(pipe.fd)
        for number in [n for n, child in self._children.items() if child in ready]:
            child = self._children[number]
            if not child.reap():  # a debugger or strace has not reaped it yet
                continue
            forget(self._selector, child)
            del self._children[number]
            self.write(encode(Kind.EXIT, number, child.exit_code))

    def _take(self, kind: Kind, number: int, payload: bytes) -> None:
        value = json.loads(payload)
        if kind is Kind.PREPARE:
            self._prepare(value)
        elif kind is Kind.START:
            with held():  # an interrupt in between would leave the process running
                self._start(number, value)
        elif kind is Kind.SIGNAL and number in self._children:
            self._children[number].send(signal.Signals(value))

    def _prepare(self, told_of: dict[str, Any]) -> None:
        """Change to the folder, and find the command there."""
        self._grace_s = told_of["grace_s"]
        own = {name: os.environ[name] for name in os.environ if not name.startswith("SMBOX_")}
        self._own = without_places(own)
        cores = len(os.sched_getaffinity(0))
        self._threads = str(max(1, cores // max(1, told_of["workers"])))
        try:
            os.chdir(told_of["folder"])
            command = (
                command_of(told_of["words"], self._own | told_of["env"])
                if told_of["words"]
                else ()
            )
        except ConfigError as error:
            self.write(encode(Kind.REFUSED, 0, str(error)))
            return
        except OSError as error:
            why = f"no worker can run in {told_of['folder']}: {error.strerror}"
            self.write(encode(Kind.REFUSED, 0, f"{why}; correct `folder` of the host"))
            return
        ready = Ready(os.getpid(), sys.executable, command, free_port())
        self.write(encode(Kind.READY, 0, asdict(ready)))

    def _start(self, number: int, order: dict[str, Any]) -> None:
        env = self._own | order["env"]
        env.setdefault("OMP_NUM_THREADS", self._threads)
        if order["node"]:
            self._nodes.add(order["node"])
        try:
            child = Child(
                order["argv"],
                env,
                Relay(self, Kind.OUTPUT, number),
                Relay(self, Kind.REPORT, number),
                at_launchers_death=signal.Signals(order["at_death"]),
            )
        except OSError as error:
            self.write(frame(Kind.OUTPUT, number, f"cannot start: {error}\n".encode()))
            self.write(encode(Kind.EXIT, number, CANNOT_START))
            return
        self._children[number] = child
        listen(self._selector, child)


def main() -> None:
    """Serve the launcher on standard input and output; redirect prints to stderr."""
    orders, events = os.dup(0), os.dup(1)
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)
    os.dup2(2, 1)
    with terminable(), contextlib.suppress(KeyboardInterrupt):
        Agent(orders, events).run()


if __name__ == "__main__":
    main()

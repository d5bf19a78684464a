"""The command that connects to a host, as a running process: frames to and from the agent.

Every wait has a timeout: a host that accepts no frames, or sends invalid frames, is abandoned.
The command is then killed. The agent sees the end of its input and ends all its processes.
"""

from __future__ import annotations

import os
import selectors
import signal
import time
from collections.abc import Callable, Sequence
from typing import Final

from smbox.errors import RemoteProtocolError
from smbox_torch.launching.children import Child, described
from smbox_torch.launching.frames import Frames, Take
from smbox_torch.launching.screen import Screen

CLOSED: Final = -1
POLL_S: Final = 0.1
ANSWER_S: Final = 10.0
"""A host that accepts no frame, or does not report a killed process, for this time is lost."""


class HostCommand:
    """The process that connects to a host and exchanges frames with the agent there.

    Args:
        argv: command that connects to the host, followed by the command of the agent.
        take: called with each frame; raises RemoteProtocolError if it is not valid.
        hear: called with other lines that the command prints.
        ended: called once the process has ended.

    Attributes:
        process: the process of the command.
        is_closing: the launcher is ending the agent.

    Raises:
        OSError: the command cannot be started; nothing is left.
    """

    def __init__(
        self,
        argv: Sequence[str],
        take: Take,
        hear: Callable[[list[str]], None],
        ended: Callable[[], None],
    ) -> None:
        self._frames = Frames(take, Screen(hear))
        self._ended = ended
        self._unsent = bytearray()
        self._fault = ""
        self.is_closing = False
        orders, self._orders = os.pipe()
        os.set_blocking(self._orders, False)
        try:
            self.process = Child(
                argv,
                os.environ,
                self,
                errors=Screen(hear),
                stdin=orders,
                at_launchers_death=signal.SIGTERM,
            )
        except BaseException:
            os.close(self._orders)
            raise
        finally:
            os.close(orders)

    @property
    def is_lost(self) -> bool:
        """Return whether the command has ended, is being ended or was abandoned."""
        return self.is_closing or bool(self._fault) or self.process.exit_code is not None

    @property
    def how(self) -> str:
        """Return how the command ended, or why it was abandoned."""
        code = self.process.exit_code
        is_ours = self._fault and code in {None, -signal.SIGKILL}
        return self._fault if is_ours else described(code or 0)

    def feed(self, chunk: bytes) -> None:
        """Process a chunk of its standard output; ignore it after a fault."""
        try:
            if not self._fault:
                self._frames.feed(chunk)
        except RemoteProtocolError as error:
            self.abandon(f"it sends invalid frames: {error}")

    def end(self) -> None:
        """Handle the end of its output."""
        self._frames.end()
        if self.process.exit_code is not None:
            self._close_orders()  # else an agent that outlives the command waits
            self._ended()
        elif self._frames.is_begun and not self.is_closing:
            self.abandon("its output has ended")

    def send(self, frame: bytes) -> None:
        """Send as much of a frame as the pipe accepts now; ``wait`` sends the rest."""
        if not self.is_lost:
            self._unsent += frame
            self._write()

    def await_sent(self) -> None:
        """Send all frames; abandon the host if it accepts nothing for ANSWER_S."""
        idle_s = 0.0  # not by the clock: this process may have been kept from reading
        while self._unsent and idle_s < ANSWER_S:
            before = len(self._unsent)
            self.wait(lambda: len(self._unsent) < before, POLL_S)  # noqa: B023 - called here
            idle_s = 0.0 if len(self._unsent) < before else idle_s + POLL_S
        if self._unsent:
            self.abandon(f"it has accepted no frames for {ANSWER_S:g} s")

    def wait(self, is_done: Callable[[], bool], timeout_s: float) -> None:
        """Send and receive frames until ``is_done``, a loss or the timeout; reap no process."""
        deadline_s = time.monotonic() + timeout_s
        open_pipes = {pipe.fd: pipe for pipe in self.process.pipes}
        while not is_done() and not self.is_lost:
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                return
            with selectors.DefaultSelector() as selector:
                for fd in open_pipes:
                    selector.register(fd, selectors.EVENT_READ)
                if self._unsent:
                    selector.register(self._orders, selectors.EVENT_WRITE)
                ready = [key.fd for key, _ in selector.select(min(left_s, POLL_S))]
            for fd in ready:  # only these pipes: data that arrived first is read first
                if fd in open_pipes and not open_pipes[fd].read():
                    del open_pipes[fd]
            self._write()

    def abandon(self, why: str) -> None:
        """Kill the command: the host is lost, and its agent ends all its processes."""
        self._unsent.clear()
        if self.process.exit_code is None:
            self._fault = self._fault or why
            self.process.send(signal.SIGKILL)

    def end_orders(self) -> None:
        """Close the agent's input: the agent ends all its processes and itself."""
        self.is_closing = True
        self._close_orders()

    def _close_orders(self) -> None:
        if self._orders != CLOSED:
            os.close(self._orders)
            self._orders = CLOSED

    def _write(self) -> None:
        try:
            while self._unsent:
                del self._unsent[: os.write(self._orders, self._unsent)]
        except BlockingIOError:
            return
        except BrokenPipeError:
            self._unsent.clear()
            if self._frames.is_begun:
                self.abandon("its input has ended")

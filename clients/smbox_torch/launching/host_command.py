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
LOOK_S: Final = 0.1
ANSWER_S: Final = 10.0
"""A host is lost that takes no order, or tells no end of a killed process, for so long."""


class HostCommand:
    """A process that enters a host; with its agent it exchanges frames.

    Args:
        argv: words that enter the host, and those of the agent.
        take: called with each frame; raises RemoteProtocolError where it is not an agent's.
        hear: called with the lines that the words print besides.
        ended: called once the process has ended.

    Attributes:
        process: that runs the words.
        is_closing: whether its end is wanted.

    Raises:
        OSError: the words start no program; nothing is left.
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
        """Return whether it has ended, is to end or was given up."""
        return self.is_closing or bool(self._fault) or self.process.exit_code is not None

    @property
    def how(self) -> str:
        """Word how it ended, or why it was given up."""
        code = self.process.exit_code
        is_ours = self._fault and code in {None, -signal.SIGKILL}
        return self._fault if is_ours else described(code or 0)

    def feed(self, chunk: bytes) -> None:
        """Take what it prints to standard output; after a fault, nothing."""
        try:
            if not self._fault:
                self._frames.feed(chunk)
        except RemoteProtocolError as error:
            self.give_up(f"it sends what no agent sends: {error}")

    def end(self) -> None:
        """Take note that nothing more comes."""
        self._frames.end()
        if self.process.exit_code is not None:
            self._close_orders()  # an agent that outlives the words would wait for more
            self._ended()
        elif self._frames.is_begun and not self.is_closing:
            self.give_up("its output has ended")

    def send(self, frame: bytes) -> None:
        """Send a frame as far as it can be taken now; ``wait`` sends the rest."""
        if not self.is_lost:
            self._unsent += frame
            self._write()

    def await_sent(self) -> None:
        """Send all frames; gives the host up that does not take them within ANSWER_S."""
        self.wait(lambda: not self._unsent, ANSWER_S)
        if self._unsent:
            self.give_up(f"it has taken no orders for {ANSWER_S:g} s")

    def wait(self, is_done: Callable[[], bool], timeout_s: float) -> None:
        """Send and take frames until it is done or lost, or the time is over; reaps nothing."""
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
                ready = [key.fd for key, _ in selector.select(min(left_s, LOOK_S))]
            for fd in ready:  # no other: what came first is read first
                if fd in open_pipes and not open_pipes[fd].read():
                    del open_pipes[fd]
            self._write()

    def give_up(self, why: str) -> None:
        """Kill the words: the host is lost, and its agent ends what it has started."""
        self._unsent.clear()
        if self.process.exit_code is None:
            self._fault = self._fault or why
            self.process.send(signal.SIGKILL)

    def end_orders(self) -> None:
        """Send nothing more: an agent ends all that it has started, and itself."""
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
                self.give_up("its input has ended")

from __future__ import annotations

import os
import pty
import re
import select
import signal
import sys
import termios
import time
from collections.abc import Callable, Iterator

import psutil
import pytest

from smbox_torch.launching import launcher, workers

TIMEOUT_S = 100.0
RUN = (sys.executable, "-c", "from smbox.cli.main import main; main()", "run")
NOWHERE = ("--address", "tcp://127.0.0.1:9")  # no worker of these tests looks for a node


class Screenful:
    """``smbox run`` on a terminal, typed at."""

    def __init__(self, *words: str) -> None:
        self.pid, self._fd = pty.fork()
        if self.pid == 0:
            os.execv(RUN[0], [*RUN, *NOWHERE, *words])
        self.shown = ""

    def until(self, text: str) -> None:
        """Read until something new holds ``text``."""
        begin, deadline_s = len(self.shown), time.monotonic() + TIMEOUT_S
        while text not in self.shown[begin:]:
            left_s = max(0.0, deadline_s - time.monotonic())
            assert select.select([self._fd], [], [], left_s)[0], self.shown
            try:
                self.shown += os.read(self._fd, 1 << 16).decode(errors="replace")
            except OSError:  # the other end is closed
                pytest.fail(f"ended without {text!r}: {self.shown}")

    def echoes(self) -> bool:
        """Whether the terminal shows what is typed."""
        return bool(termios.tcgetattr(self._fd)[3] & termios.ECHO)

    def type(self, text: str) -> None:
        os.write(self._fd, text.encode())

    def end(self) -> int:
        """Read to the end; returns the exit code, and leaves in ``echoed`` how it was then."""
        try:
            while chunk := os.read(self._fd, 1 << 16):
                self.shown += chunk.decode(errors="replace")
        except OSError:  # the other end is closed
            pass
        self.echoed = self.echoes()
        os.close(self._fd)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


@pytest.fixture
def on_terminal(monkeypatch) -> Iterator[Callable[..., Screenful]]:
    """``on_terminal(*words)``: a Screenful, which is killed in the end."""
    monkeypatch.setenv("TERM", "xterm")
    made: list[Screenful] = []

    def start(*words: str) -> Screenful:
        made.append(Screenful(*words))
        return made[-1]

    yield start
    for each in made:
        try:
            os.kill(each.pid, signal.SIGKILL)
            os.waitpid(each.pid, 0)
        except (ProcessLookupError, ChildProcessError):
            continue


DEBUGGED = """
import os
secret = "of rank " + os.environ["SMBOX_RANK"]
if os.environ["SMBOX_RANK"] == "0":
    breakpoint()
print("went on")
"""


def test_a_debugger_in_rank_0_works(script, on_terminal):
    screen = on_terminal("--per-node", "2", script(DEBUGGED))
    screen.until("(Pdb) ")
    screen.type("p 'value', secret\n")
    screen.until("('value', 'of rank 0')")
    screen.until("(Pdb) ")
    screen.type("c\n")
    assert screen.end() == 0
    assert "[rank 0] went on" in screen.shown.replace("(Pdb) ", "")
    assert "[rank 1] went on" in screen.shown


def test_an_interrupt_at_a_prompt_ends_all(script, on_terminal):
    screen = on_terminal("--per-node", "2", script(DEBUGGED))
    screen.until("(Pdb) ")
    family = psutil.Process(screen.pid).children(recursive=True)
    assert family
    screen.type("\x03")
    assert screen.end() == 130
    assert "interrupted; ending all workers" in screen.shown
    last = screen.shown[screen.shown.rindex("state") :]
    assert "running" not in last
    assert "ended: signal SIG" in last
    assert psutil.wait_procs(family, timeout=TIMEOUT_S)[1] == []


HIDDEN = """
import termios
mode = termios.tcgetattr(0)
mode[3] &= ~termios.ECHO
termios.tcsetattr(0, termios.TCSANOW, mode)
input("password? ")
"""


def test_a_terminal_is_given_back_as_it_was(script, on_terminal):
    screen = on_terminal(script(HIDDEN))
    screen.until("password? ")
    assert not screen.echoes()
    screen.type("\x03")
    screen.until("interrupted")
    assert screen.end() == 130
    assert screen.echoed


def test_a_terminal_that_was_closed_is_not_given_back(monkeypatch):
    monitor, terminal = pty.openpty()
    for module in (launcher, workers):
        monkeypatch.setattr(module, "STDIN", terminal)
    monkeypatch.setattr(os, "tcgetpgrp", lambda _: os.getpgrp())
    with launcher.terminal_kept():
        os.close(monitor)
    os.close(terminal)


BARS = """
import os, time
from tqdm import tqdm
for step in tqdm(range(200), desc="bar of " + os.environ["SMBOX_RANK"], mininterval=0):
    time.sleep(0.005)
"""


def test_on_a_terminal_the_bar_of_rank_0_is_drawn_in_place(script, on_terminal):
    pytest.importorskip("tqdm")
    screen = on_terminal("--per-node", "2", script(BARS))
    assert screen.end() == 0
    assert len(re.findall(r"\nbar of 0: +\d+%", screen.shown)) > 1
    assert not re.search(r"\nbar of 1: +\d+%", screen.shown)
    assert screen.shown.count("[rank 0] bar of 0: 100%") == 1
    assert screen.shown.count("[rank 1] bar of 1: 100%") == 1

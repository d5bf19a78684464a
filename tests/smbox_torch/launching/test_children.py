from __future__ import annotations

import errno
import os
import select
import signal
import subprocess
import sys

import psutil
import pytest

from smbox.errors import SystemLimitError
from smbox_torch.launching.children import (
    LINE_NBYTES_MAX,
    Child,
    Lines,
    Pipe,
    described,
    end_all,
)
from smbox_torch.launching.interrupts import terminable
from smbox_torch.launching.workers import readable_stdin

LONG_S = 60.0


@pytest.fixture
def start():
    """``start(code)``: a child that runs Python code, and the lines it prints."""
    children: list[Child] = []

    def begin(
        code: str, *, reports: list[str] | None = None, stdin: int = subprocess.DEVNULL
    ) -> tuple[Child, list[str]]:
        lines: list[str] = []
        report = Lines(reports.append) if reports is not None else None
        command = [sys.executable, "-c", code]
        child = Child(command, os.environ, Lines(lines.append), report, stdin=stdin)
        children.append(child)
        return child, lines

    yield begin
    end_all(children, 0.0)


def wait(child: Child) -> None:
    assert select.select([child.pidfd], [], [], LONG_S)[0]
    assert child.reap()


def first_line(child: Child, lines: list[str]) -> str:
    while not lines:
        assert select.select([child.pipes[0].fd], [], [], LONG_S)[0]
        child.pipes[0].read()
    return lines[0]


def test_lines_of_both_streams_and_the_exit_code_arrive(start):
    child, lines = start(
        "import os, sys\nprint('out')\nsys.stdout.flush()\n"
        "os.write(2, b'err\\nno end')\nsys.exit(3)"
    )
    wait(child)
    assert lines == ["out", "err", "no end"]
    assert child.exit_code == 3
    assert child.reap()


class Refill:
    """Writes what it takes to the pipe again, as a process does that never stops printing."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self.taken = 0

    def feed(self, chunk: bytes) -> None:
        self.taken += 1
        assert self.taken < 1000, "one pipe keeps the launcher from everything else"
        os.write(self._fd, chunk)

    def end(self) -> None:
        pass


def test_a_pipe_that_never_runs_dry_leaves_others_their_turn():
    read_end, write_end = os.pipe()
    refill = Refill(write_end)
    pipe = Pipe(read_end, refill)
    os.write(write_end, b"more")
    assert pipe.read()
    assert refill.taken
    pipe.close()
    assert not pipe.read()  # an event of the turn in which it was closed
    os.close(write_end)


def test_reports_come_on_a_pipe_of_their_own(start):
    reports: list[str] = []
    child, lines = start(
        "import os\nos.write(int(os.environ['SMBOX_REPORT_FD']), b'{\"step\": 1}\\n')",
        reports=reports,
    )
    wait(child)
    assert (lines, reports) == ([], ['{"step": 1}'])


def test_standard_input_is_what_it_is_given_or_empty(start):
    read_end, write_end = os.pipe()
    os.write(write_end, b"yes\n")
    os.close(write_end)
    answered, lines = start("print(input())", stdin=read_end)
    wait(answered)
    os.close(read_end)
    alone, none = start("import sys\nprint(repr(sys.stdin.read()))")
    wait(alone)
    assert (lines, none) == (["yes"], ["''"])


def test_a_child_that_ends_takes_its_own_children_along(start):
    child, lines = start(
        "import os, subprocess, sys\n"
        "argv = [sys.executable, '-c', 'input()']\n"
        "print(subprocess.Popen(argv, stdin=subprocess.PIPE).pid, flush=True)\n"
        "os.read(0, 1)\nos._exit(0)"
    )
    grandchild = psutil.Process(int(first_line(child, lines)))
    wait(child)
    assert psutil.wait_procs([grandchild], timeout=LONG_S)[1] == []


def test_one_that_heeds_sigterm_is_not_killed(start):
    child, lines = start(
        "import signal, sys, time\nsignal.signal(signal.SIGTERM, lambda *_: sys.exit(9))\n"
        "print('ready', flush=True)\nwhile True: time.sleep(0.01)"
    )
    assert first_line(child, lines) == "ready"
    end_all([child], LONG_S)
    assert child.exit_code == 9


@pytest.mark.parametrize("state", ["deaf", "stopped"])
def test_one_that_does_not_is(start, state: str):
    child, lines = start(
        "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "print('ready', flush=True)\nwhile True: signal.pause()"
    )
    first_line(child, lines)
    if state == "stopped":
        child.send(signal.SIGSTOP)
    end_all([child], 0.2)
    assert child.exit_code == -signal.SIGKILL


def test_one_that_prints_much_while_it_ends_is_listened_to(start):
    child, lines = start(
        "import signal\n"  # a handler could interrupt the first print: then it cannot print
        "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])\n"
        "print('ready', flush=True)\nsignal.sigwait([signal.SIGTERM])\nprint('x' * 300000)"
    )
    first_line(child, lines)
    end_all([child], LONG_S)
    assert child.exit_code == 0
    assert sum(map(len, lines[1:])) == 300000


def test_a_command_that_cannot_be_started_leaves_nothing():
    with pytest.raises(FileNotFoundError):
        Child(["/nowhere/at-all"], {}, Lines(print))


def test_a_child_for_whose_pipes_there_is_no_room_leaves_none(monkeypatch):
    make, made = os.pipe, []

    def pipe() -> tuple[int, int]:
        if made:
            raise OSError(errno.EMFILE, "Too many open files")
        made.extend(make())
        return made[0], made[1]

    monkeypatch.setattr(os, "pipe", pipe)
    with pytest.raises(OSError, match="Too many open files"):
        Child(["true"], {}, Lines(print), Lines(print))
    for fd in made:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(fd)


@pytest.mark.parametrize("number", [errno.EAGAIN, errno.ENOSYS])
def test_a_child_that_cannot_be_watched_is_ended(monkeypatch, number: int):
    opened: list[psutil.Process] = []

    def refuse(pid: int) -> int:
        opened.append(psutil.Process(pid))
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "pidfd_open", refuse)
    limit = number == errno.EAGAIN
    with pytest.raises(OSError, match="raise ulimit -u" if limit else "not impl") as raised:
        Child(["sleep", "60"], os.environ, Lines(print))
    assert isinstance(raised.value, SystemLimitError) == limit
    assert not opened[0].is_running()


def test_an_interrupt_while_a_child_is_reaped_loses_nothing(start, monkeypatch):
    child, lines = start("print('last')\nraise SystemExit(3)")
    assert select.select([child.pidfd], [], [], LONG_S)[0]
    real = os.waitpid

    def interrupted(pid: int, options: int) -> tuple[int, int]:
        status = real(pid, options)
        signal.raise_signal(signal.SIGTERM)
        return status

    with terminable(), monkeypatch.context() as patch:
        patch.setattr(os, "waitpid", interrupted)
        with pytest.raises(KeyboardInterrupt):
            child.reap()
    assert child.reap()
    assert child.exit_code == 3
    assert lines == ["last"]


def test_the_exit_status_arrives_where_sigchld_was_ignored(start):
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        with terminable():
            child, _ = start("raise SystemExit(3)")
            wait(child)
        assert signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGCHLD, before)
    assert child.exit_code == 3


def test_output_without_a_newline_is_passed_on_in_pieces():
    taken: list[str] = []
    lines = Lines(taken.append)
    for _ in range(3):
        lines.feed(b"x" * LINE_NBYTES_MAX)
    assert [len(each) for each in taken] == [2 * LINE_NBYTES_MAX]
    lines.end()
    assert [len(each) for each in taken[1:]] == [LINE_NBYTES_MAX]


def test_ends_are_worded():
    assert described(3) == "exit code 3"
    assert described(-9) == "signal SIGKILL"
    assert described(-99) == "signal 99"


@pytest.mark.parametrize("reason", ["closed before", "closed", "another job"])
def test_an_input_that_must_not_be_read_is_not_given_to_a_worker(reason, monkeypatch):
    with monkeypatch.context() as patch:
        if reason == "closed before":
            patch.setattr(sys, "__stdin__", None)
        elif reason == "another job":
            patch.setattr(os, "isatty", lambda _: True)
            patch.setattr(os, "tcgetpgrp", lambda _: os.getpgrp() + 1)
        else:
            patch.setattr(os, "isatty", lambda _: False)
            patch.setattr("smbox_torch.launching.workers.STDIN", os.sysconf("SC_OPEN_MAX"))
        assert readable_stdin() == subprocess.DEVNULL

"""Child processes of a launcher: their output, and how they are ended with their descendants.

A child leads its own session, so that ending it also ends its own children. It gets a signal
(PR_SET_PDEATHSIG) when the launcher dies, even if the launcher is killed.
"""

from __future__ import annotations

import contextlib
import functools
import math
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, Protocol

from smbox.limits import is_limit, refusal
from smbox.memory import process
from smbox_torch.launching.interrupts import ENDING, held
from smbox_torch.workers.reporter import REPORT_FD

CHUNK_NBYTES: Final = 1 << 16
TURN_NBYTES: Final = 4 * CHUNK_NBYTES
"""Largest number of bytes read from one pipe before the other pipes are read."""

PIPE_NBYTES_MAX: Final = 1 << 20
"""Capacity of a pipe (fs.pipe-max-size), so an ended process has left at most this much."""

LINE_NBYTES_MAX: Final = 1 << 16
"""Output without a newline is shown in pieces of this size."""


def _heed_launcher(launcher: int, at_its_death: signal.Signals) -> None:
    process.signal_on_parent_death(at_its_death)
    if os.getppid() != launcher:  # it has died already: there will be no signal
        os._exit(1)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)  # the launcher may have blocked them


class Sink(Protocol):
    """A consumer of the bytes of a pipe."""

    def feed(self, chunk: bytes) -> None:
        """Process a chunk of bytes; chunks may end anywhere."""

    def end(self) -> None:
        """Handle the end of the input. Idempotent."""


class Lines:
    """Splits bytes into lines of text.

    Args:
        take: called with each line, without its newline.
    """

    def __init__(self, take: Callable[[str], None]) -> None:
        self._take = take
        self._rest = b""

    def feed(self, chunk: bytes) -> None:
        """Process a chunk of bytes; chunks may end anywhere."""
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        if len(self._rest) > LINE_NBYTES_MAX:
            lines.append(self._rest)
            self._rest = b""
        for line in lines:
            self._take(line.decode(errors="replace"))

    def end(self) -> None:
        """Pass on the last line if it has no newline."""
        if self._rest:
            self._take(self._rest.decode(errors="replace"))
        self._rest = b""


class Pipe:
    """The non-blocking read end of a pipe.

    Args:
        fd: its descriptor, which this object closes.
        sink: receives the bytes.
    """

    def __init__(self, fd: int, sink: Sink) -> None:
        os.set_blocking(fd, False)
        self.fd = fd
        self._sink = sink
        self._is_closed = False

    def read(self, nbytes_max: int = TURN_NBYTES) -> bool:
        """Read at most ``nbytes_max`` available bytes; return False at the end of the input."""
        if self._is_closed:
            return False
        for _ in range(nbytes_max // CHUNK_NBYTES):
            try:
                chunk = os.read(self.fd, CHUNK_NBYTES)
            except BlockingIOError:
                return True
            if not chunk:
                self._sink.end()
                return False
            self._sink.feed(chunk)
        return True

    def close(self) -> None:
        """Read the remaining bytes, and close; a descendant may still have the write end.

        Idempotent.
        """
        if self._is_closed:
            return
        if self.read(PIPE_NBYTES_MAX):
            self._sink.end()
        self._is_closed = True
        os.close(self.fd)


class Running(Protocol):
    """A process of a launcher: its own child, or a process that an agent has started.

    Attributes:
        pidfd: descriptor that is readable once the process has ended.
        pipes: pipes with its output; all processes of one agent share the agent's pipes.
        own: descriptors that belong to this process alone.
        exit_code: None until the process is reaped.
    """

    pidfd: int
    own: Sequence[int]
    exit_code: int | None

    @property
    def pipes(self) -> Sequence[Pipe]:
        """The pipes with its output."""

    def reap(self) -> bool:
        """Return whether the process has ended, ``exit_code`` is known and its output taken."""

    def send(self, sign: signal.Signals) -> None:
        """Send a signal to the process and to its descendants in its session."""


class Child:
    """A running child process.

    Args:
        argv: program and arguments.
        env: its entire environment.
        output: receives its stdout and stderr.
        errors: receives its stderr; None: ``output`` does.
        reports: receives its reports; None: it gets no pipe for reports.
        stdin: descriptor of its standard input, or subprocess.DEVNULL.
        at_launchers_death: signal that the process gets when the launcher dies.

    Raises:
        SystemLimitError: this host can start no more processes or open no more files.
        OSError: the program cannot be started. No process is left in either case.
    """

    def __init__(
        self,
        argv: Sequence[str],
        env: Mapping[str, str],
        output: Sink,
        reports: Sink | None = None,
        *,
        errors: Sink | None = None,
        stdin: int = subprocess.DEVNULL,
        at_launchers_death: signal.Signals = signal.SIGKILL,
    ) -> None:
        self.pipes: list[Pipe] = []
        ends: list[int] = []
        try:
            output_end = self._pipe(output, ends)
            error_end = output_end if errors is None else self._pipe(errors, ends)
            report_ends = [] if reports is None else [self._pipe(reports, ends)]
            variables = dict(env)
            if report_ends:
                variables[REPORT_FD] = str(report_ends[0])
            self._process = subprocess.Popen(
                argv,
                env=variables,
                stdin=stdin,
                stdout=output_end,
                stderr=error_end,
                pass_fds=report_ends,
                start_new_session=True,
                preexec_fn=functools.partial(  # noqa: PLW1509 - the launcher has no threads
                    _heed_launcher, os.getpid(), at_launchers_death
                ),
            )
            self.pid = self._process.pid
            try:
                self.pidfd = os.pidfd_open(self.pid)
            except OSError:
                self.send(signal.SIGKILL)
                self._process.wait()
                raise
        except BaseException as error:
            for pipe in self.pipes:
                os.close(pipe.fd)
            if isinstance(error, OSError) and is_limit(error):
                raise refusal(f"start {argv[0]}", error) from error
            raise
        finally:
            for end in ends:
                os.close(end)
        self.own: Sequence[int] = [self.pidfd, *(pipe.fd for pipe in self.pipes)]
        self.exit_code: int | None = None

    def _pipe(self, sink: Sink, ends: list[int]) -> int:
        """Make a pipe to a sink; add its write end to ``ends`` and return it."""
        read_end, end = os.pipe()
        self.pipes.append(Pipe(read_end, sink))
        ends.append(end)
        return end

    def reap(self) -> bool:
        """Return whether the process has ended; if so, set ``exit_code``.

        Then also end its descendants and read its last output. ``exit_code`` is the exit
        status, or minus the signal that killed the process.
        """
        if self.exit_code is None:
            ended = os.waitid(os.P_PIDFD, self.pidfd, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if ended is None:
                return False
            self.send(signal.SIGKILL)  # before its pid, the number of its group, is used again
            with held():  # an interrupt in between would lose the exit status
                self.exit_code = self._process.wait()
                os.close(self.pidfd)
        for pipe in self.pipes:  # in a later call too: an interrupt may have left some open
            pipe.close()
        return True

    def send(self, sign: signal.Signals) -> None:
        """Send a signal to the process and to its descendants in its session."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, sign)


def end_all(children: Iterable[Running], grace_s: float) -> None:
    """End processes: send SIGTERM, then SIGKILL to those that still run after ``grace_s``.

    Another interrupt ends the wait at once.
    """
    alive = [child for child in children if not child.reap()]
    for child in alive:
        child.send(signal.SIGTERM)
    try:
        alive = await_end(alive, time.monotonic() + grace_s)
    finally:
        for child in alive:
            child.send(signal.SIGKILL)
        await_end(alive, math.inf)


def await_end(alive: Sequence[Running], deadline_s: float) -> list[Running]:
    """Wait until all have ended, or for the deadline; return those that still run."""
    alive = [child for child in alive if not child.reap()]
    while alive and (left_s := deadline_s - time.monotonic()) > 0:
        with selectors.DefaultSelector() as selector:
            for child in alive:
                selector.register(child.pidfd, selectors.EVENT_READ)
                for pipe in child.pipes:  # a full pipe would keep it from ending
                    pipe.read()
            selector.select(min(left_s, 0.1))
        alive = [child for child in alive if not child.reap()]
    return alive


def described(exit_code: int) -> str:
    """Return a text that says how a process ended."""
    if exit_code >= 0:
        return f"exit code {exit_code}"
    try:
        return f"signal {signal.Signals(-exit_code).name}"
    except ValueError:
        return f"signal {-exit_code}"


def listen(selector: selectors.BaseSelector, child: Running) -> None:
    """Register a child's end (data: the child) and output (data: Pipe) with ``selector``."""
    selector.register(child.pidfd, selectors.EVENT_READ, child)
    for pipe in child.pipes:
        if pipe.fd not in selector.get_map():
            selector.register(pipe.fd, selectors.EVENT_READ, pipe)


def forget(selector: selectors.BaseSelector, child: Running) -> None:
    """Unregister what ``listen`` registered, except pipes that other processes share."""
    for fd in child.own:
        if fd in selector.get_map():
            selector.unregister(fd)

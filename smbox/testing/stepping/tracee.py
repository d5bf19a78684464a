"""A child process under ptrace(2): runs to a function, then instruction by instruction."""

from __future__ import annotations

import ctypes
import os
import platform
import signal
import sys
import traceback
from collections.abc import Callable
from typing import Final, Self

_libc: Final = ctypes.CDLL(None, use_errno=True)
_libc.ptrace.restype = ctypes.c_long
_libc.ptrace.argtypes = (ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p)

_TRACEME: Final = 0
_PEEKTEXT: Final = 1
_PEEKUSER: Final = 3
_POKETEXT: Final = 4
_POKEUSER: Final = 6
_CONT: Final = 7
_SINGLESTEP: Final = 9
_SETOPTIONS: Final = 0x4200
_EXITKILL: Final = 0x100000

_RIP: Final = 16 * 8  # bytes into struct user_regs_struct of x86-64
_RSP: Final = 19 * 8
_BREAKPOINT: Final = 0xCC  # int3
_BYTE: Final = 0xFF
_WORD: Final = (1 << 64) - 1


def why_impossible() -> str | None:
    """Return why this machine cannot step a process; None if it can."""
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return "stepping needs Linux on x86-64"
    with Tracee(stop_for_parent) as child:
        return None if child.is_stopped else "this system does not allow ptrace"


def stop_for_parent() -> None:
    """Stop this child process, and let its parent trace it from here on."""
    if _libc.ptrace(_TRACEME, 0, None, None) == 0:
        os.kill(os.getpid(), signal.SIGSTOP)


class Tracee:
    """A forked child that calls ``stop_for_parent``; this process then controls it.

    Attributes:
        pid: of the child.
        is_stopped: whether it waits for ``run_to`` or ``step``; else it has ended.
        exit_code: its exit code, once it has ended.

    Args:
        run: called by the child, which then ends.
    """

    def __init__(self, run: Callable[[], object]) -> None:
        sys.stdout.flush()
        self.pid = os.fork()
        if self.pid == 0:
            _run_and_exit(run)
        self.exit_code: int | None = None
        self.is_stopped = False
        self._return_at = self._return_sp = 0
        self._wait()
        if self.is_stopped:
            self._ptrace(_SETOPTIONS, 0, _EXITKILL)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.is_stopped:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
            self.is_stopped = False

    def run_to(self, function: int) -> bool:
        """Run to the first instruction of a function; return False if the child ends before it.

        Args:
            function: its address, which is the same in this process.
        """
        word = self._ptrace(_PEEKTEXT, function)
        self._ptrace(_POKETEXT, function, word & ~_BYTE | _BREAKPOINT)
        self._ptrace(_CONT)
        self._wait()
        if not self.is_stopped:
            return False
        self._ptrace(_POKETEXT, function, word)
        self._ptrace(_POKEUSER, _RIP, function)
        stack = self._ptrace(_PEEKUSER, _RSP)
        self._return_at, self._return_sp = self._ptrace(_PEEKTEXT, stack), stack + 8
        return True

    def step(self) -> bool:
        """Run one instruction; return False if the function of ``run_to`` has returned."""
        self._ptrace(_SINGLESTEP)
        self._wait()
        assert self.is_stopped, f"the child ended inside the function: {self.exit_code}"
        return not (
            self._ptrace(_PEEKUSER, _RIP) == self._return_at
            and self._ptrace(_PEEKUSER, _RSP) == self._return_sp
        )

    def _wait(self) -> None:
        _, status = os.waitpid(self.pid, 0)
        self.is_stopped = os.WIFSTOPPED(status)
        if self.is_stopped:
            found = os.WSTOPSIG(status)
            assert found in {signal.SIGTRAP, signal.SIGSTOP}, f"stopped by signal {found}"
        else:
            self.exit_code = os.waitstatus_to_exitcode(status)

    def _ptrace(self, request: int, address: int = 0, value: int = 0) -> int:
        ctypes.set_errno(0)
        found: int = _libc.ptrace(request, self.pid, address, value)
        if found == -1 and ctypes.get_errno():
            raise OSError(ctypes.get_errno(), f"ptrace request {request} failed")
        return found & _WORD


def _run_and_exit(run: Callable[[], object]) -> None:
    status = 1
    try:
        run()
        status = 0
    except BaseException:  # noqa: BLE001 - a forked child must never return into its parent
        traceback.print_exc()
    finally:
        os._exit(status)

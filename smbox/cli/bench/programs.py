"""Termination of the programs of the benchmark: they exit when their standard input ends."""

from __future__ import annotations

import subprocess
from typing import Final

STOP_S: Final = 30.0


def stop(program: subprocess.Popen[str]) -> None:
    """Close a program's pipes and wait for its end; one that does not end in time is killed."""
    for pipe in (program.stdin, program.stdout):
        if pipe is not None:
            pipe.close()
    try:
        program.wait(STOP_S)
    except subprocess.TimeoutExpired:
        program.kill()
        program.wait()

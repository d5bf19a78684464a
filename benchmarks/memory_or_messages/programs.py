"""Programs of the experiment: each says in a line of JSON that it is ready, ends with us."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from smbox.cli.bench.programs import stop
from smbox.errors import ConnectError

HOME = Path(__file__).resolve().parents[1]
"""Where Python finds this package."""


def spawn(words: Sequence[str], before: Sequence[str] = ()) -> subprocess.Popen[str]:
    """Start a Python program with pipes for its standard input and output.

    Args:
        words: of its command line, after ``python``.
        before: ``mpirun`` and its options, say.
    """
    path = os.pathsep.join([str(HOME), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    env: Mapping[str, str] = os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [*before, sys.executable, *words],
        env=env,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        process_group=0,  # Ctrl-C is for the experiment, which ends them
    )


def hear(program: subprocess.Popen[str]) -> Any:
    """Return what a program says next.

    Raises:
        ConnectError: it has ended.
    """
    line = program.stdout.readline() if program.stdout is not None else ""
    if not line:
        raise ConnectError("a program of the experiment ended; its words are above")
    return json.loads(line)


@contextmanager
def started(words: Sequence[str]) -> Iterator[Any]:
    """Run a Python program; yields what it says when it is ready."""
    program = spawn(words)
    try:
        yield hear(program)
    finally:
        stop(program)

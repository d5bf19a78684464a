"""MPI messages as a way to do the verbs: over tcp, and over memory that two ranks share."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from typing import Final

from memory_or_messages.programs import hear, spawn
from memory_or_messages.rows import Verb
from memory_or_messages.ways import Way
from smbox.cli.bench.programs import stop

LAYERS: Final = {"MPI, memory": "vader,self", "MPI, tcp": "tcp,self"}
"""Open MPI's transports between ranks of one host: shared memory (vader), and tcp."""


def missing() -> str:
    """Say why there is no MPI here; nothing if there is."""
    if find_spec("mpi4py") is None:
        return "mpi4py is not installed"
    return "" if shutil.which("mpirun") else "there is no mpirun"


class Mpi:
    """Two ranks that do it.

    Args:
        name: of the way.
        ranks: ``mpirun``, ready.
    """

    def __init__(self, name: str, ranks: subprocess.Popen[str]) -> None:
        self.name = name
        self._ranks = ranks

    def seconds(self, verb: Verb, nbytes: int, repeats: int) -> float:
        """See Way; the time is rank 0's own."""
        assert self._ranks.stdin is not None
        self._ranks.stdin.write(json.dumps([verb, nbytes, repeats]) + "\n")
        self._ranks.stdin.flush()
        return float(hear(self._ranks))


@contextmanager
def mpi_ways(nbytes: int) -> Iterator[list[Way]]:
    """Start MPI for operands so large; no ways where there is none."""
    if missing():
        yield []
        return
    ways: list[Way] = []
    with ExitStack() as opened:
        for name, layers in LAYERS.items():
            before = ["mpirun", "-n", "2", "--oversubscribe", "--bind-to", "none"]
            before += ["--mca", "pml", "ob1", "--mca", "btl", layers]
            if os.geteuid() == 0:
                before.append("--allow-run-as-root")
            ranks = spawn(["-m", "memory_or_messages.mpi_program", str(nbytes // 4)], before)
            opened.callback(stop, ranks)
            hear(ranks)
            ways.append(Mpi(name, ranks))
        yield ways

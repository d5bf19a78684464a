"""MPI as a way to do the verbs, by messages and one-sided: over tcp, and over shared memory."""

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

LAYERS: Final = {"memory": ("vader,self", "sm"), "tcp": ("tcp,self", "pt2pt")}
"""Open MPI's transports between ranks of one host, and who does its one-sided calls: shared
memory (vader, and windows that both ranks map), and tcp (by messages, which rank 1 answers
while it waits)."""
FORMS: Final = {"messages": "MPI", "rma": "MPI RMA"}
"""Names of the program's forms in tables."""


def missing() -> str:
    """Say why there is no MPI here; nothing if there is."""
    if find_spec("mpi4py") is None:
        return "mpi4py is not installed"
    return "" if shutil.which("mpirun") else "there is no mpirun"


class Mpi:
    """Two ranks that do it.

    Args:
        name: of the way.
        form: of the program's calls.
        ranks: ``mpirun``, ready.
    """

    def __init__(self, name: str, form: str, ranks: subprocess.Popen[str]) -> None:
        self.name = name
        self._form = form
        self._ranks = ranks

    def seconds(self, verb: Verb, nbytes: int, repeats: int) -> float:
        """See Way; the time is rank 0's own."""
        assert self._ranks.stdin is not None
        self._ranks.stdin.write(json.dumps([self._form, verb, nbytes, repeats]) + "\n")
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
        for path, (layers, windows) in LAYERS.items():
            # Windows over tcp want ranks whose threads call MPI one after the other.
            before = ["env", "MPI4PY_RC_THREAD_LEVEL=serialized"]
            before += ["mpirun", "-n", "2", "--oversubscribe", "--bind-to", "none"]
            before += ["--mca", "pml", "ob1", "--mca", "btl", layers, "--mca", "osc", windows]
            if os.geteuid() == 0:
                before.append("--allow-run-as-root")
            ranks = spawn(["-m", "memory_or_messages.mpi_program", str(nbytes // 4)], before)
            opened.callback(stop, ranks)
            hear(ranks)
            ways += [Mpi(f"{name}, {path}", form, ranks) for form, name in FORMS.items()]
        yield ways

"""Setup of the benchmark: a memory node, a peer for the limits, and boxes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from smbox.box import Box
from smbox.cli.bench.limits import BareZmq, RawStream
from smbox.cli.bench.measure import Clocks, Timing, cpu_seconds, interleave
from smbox.cli.bench.programs import stop
from smbox.cli.bench.result import MEBIBYTE
from smbox.connecting import connect
from smbox.errors import ConnectError
from smbox.region import Region

TIMEOUT_S: Final = 120.0

Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Scale:
    """How much the benchmark measures.

    Attributes:
        sizes: bytes of local transfers.
        big_nbytes: bytes of the middling transfers (100 MiB).
        huge_nbytes: bytes of the largest transfers (528 MiB, a VGG16).
        rounds: how often A and B take turns.
        crowd_rounds: how often crowds of several sizes do.
        calls: how many small calls a median is taken from.
        crowd_s: seconds that processes run together.
        memory: the node's limit, as memnode reads it.
    """

    sizes: tuple[int, ...]
    big_nbytes: int
    huge_nbytes: int
    rounds: int
    crowd_rounds: int
    calls: int
    crowd_s: float
    memory: str


FULL: Final = Scale(
    sizes=tuple(size * MEBIBYTE for size in (1, 16, 100, 528)),
    big_nbytes=100 * MEBIBYTE,
    huge_nbytes=528 * MEBIBYTE,
    rounds=31,
    crowd_rounds=3,
    calls=2000,
    crowd_s=2.0,
    memory="3GiB",
)
QUICK: Final = Scale(
    sizes=(MEBIBYTE, 16 * MEBIBYTE),
    big_nbytes=16 * MEBIBYTE,
    huge_nbytes=32 * MEBIBYTE,
    rounds=3,
    crowd_rounds=2,
    calls=200,
    crowd_s=0.3,
    memory="512MiB",
)


class Lab:
    """What every row works with.

    Attributes:
        scale: how much to measure.
        local: a box over shared memory.
        remote: a box over tcp, forced.
        stream: the raw TCP limit.
        bare: the bare ZeroMQ limit.
        node_pid: process id of the memory node.
        address: of the memory node.
        zmq_port: where the peer of the bare ZeroMQ limit listens.
    """

    def __init__(self, scale: Scale, node: dict[str, Any], peer: dict[str, Any]) -> None:
        self.scale = scale
        self.address: str = node["address"]
        self.node_pid: int = node["pid"]
        self.zmq_port: int = peer["zmq_port"]
        self._peer_pid: int = peer["pid"]
        with ExitStack() as opened:
            self.local: Box = opened.enter_context(
                connect(self.address, transport="shm", timeout_s=TIMEOUT_S)
            )
            self.remote: Box = opened.enter_context(
                connect(self.address, transport="tcp", timeout_s=TIMEOUT_S)
            )
            self.stream = RawStream(peer["tcp_port"])
            opened.callback(self.stream.close)
            self.bare = BareZmq(self.zmq_port)
            opened.callback(self.bare.close)
            self._opened = opened.pop_all()

    def time(
        self,
        calls: dict[str, Callable[[], object]],
        *,
        rounds: int | None = None,
        repeats: int = 1,
    ) -> dict[str, Timing]:
        """Time the calls against each other; CPU time is this process's, node's and peer's."""
        pids = [os.getpid(), self.node_pid, self._peer_pid]
        clocks = Clocks(time.perf_counter, lambda: cpu_seconds(pids))
        rounds = rounds or self.scale.rounds
        return interleave(calls, rounds=rounds, clocks=clocks, repeats=repeats)

    @contextmanager
    def region(self, box: Box, nbytes: int, consistency: str = "stripe") -> Iterator[Region]:
        """Create a float32 region of ``nbytes`` zeros and free it afterwards."""
        name = f"bench-{time.monotonic_ns():x}"
        yield box.create(
            name, shape=(nbytes // 4,), dtype="float32", init=0.0, consistency=consistency
        )
        box.free(name)

    def close(self) -> None:
        """Close boxes and connections."""
        self._opened.close()


def ones(nbytes: int) -> Floats:
    """Return an array of ``nbytes`` whose pages have been touched."""
    return np.ones(nbytes // 4, np.float32)


@contextmanager
def open_lab(scale: Scale) -> Iterator[Lab]:
    """Start a node and a peer, and stop them afterwards."""
    node = [sys.executable, "-P", "-m", "memnode", "--bind", "tcp://127.0.0.1:0", "--json"]
    node += ["--memory", scale.memory, "--parent-pid", str(os.getpid())]
    peer = [sys.executable, "-P", "-m", "smbox.cli.bench.peer"]
    with _started(node) as node_line, _started(peer) as peer_line:
        lab = Lab(scale, node_line, peer_line)
        try:
            yield lab
        finally:
            lab.close()


@contextmanager
def _started(command: list[str]) -> Iterator[dict[str, Any]]:
    """Run a program that says in a line of JSON when it is ready."""
    program = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        process_group=0,  # Ctrl-C is for the benchmark, which ends them
    )
    try:
        line = program.stdout.readline() if program.stdout is not None else ""
        if not line:
            raise ConnectError("a program of the benchmark ended", command=command[3])
        yield json.loads(line)
    finally:
        program.terminate()
        stop(program)

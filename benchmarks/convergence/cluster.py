"""The processes of one run: a memory node, and workers that start, die and join as planned."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import psutil
from parts import HALF, Part
from rows import Row
from worker import PROGRESS

import smbox

MEMORY = "512MiB"
"""Each tcp channel that fetches needs some 16 MiB for answers; it is not taken before."""

WORKER = Path(__file__).with_name("worker.py")
POLL_S = 0.1
SAID_CHARACTERS = 4000


class RunFailedError(Exception):
    """A worker failed, or the run took too long; the message holds what the workers printed."""


class Cluster:
    """Workers of one run on one host; several nodes are played by tcp between them.

    Args:
        row: what is run.
        planned: each worker's part.
        folder: where workers read their settings and leave their figures.
    """

    def __init__(self, row: Row, planned: Sequence[Part], folder: Path) -> None:
        self._row = row
        self._parts = planned
        self._folder = folder
        self._run = {"TORCHELASTIC_RUN_ID": uuid.uuid4().hex, "MASTER_ADDR": "127.0.0.1"}
        self._run["MASTER_PORT"] = str(_free_port())
        self._workers: dict[int, subprocess.Popen[bytes]] = {}

    def run(self, *, told: Callable[[float], None], timeout_s: float) -> float:
        """Run all workers to their end.

        Args:
            told: called with rank 0's progress, from 0 to 1.
            timeout_s: after which the run has failed.

        Returns:
            CPU time of the memory node, in seconds.

        Raises:
            RunFailedError: a worker failed unplanned, or the time is over; all are ended.
        """
        with smbox.local(memory=MEMORY) as box:
            self._run["SMBOX_ADDRESS"] = box.address
            progress = box.counter(PROGRESS)
            deadline_s = time.monotonic() + timeout_s
            try:
                self._start(0.0)
                while self._goes_on():
                    done = progress.value / 100.0
                    told(done)
                    self._start(done)
                    if time.monotonic() > deadline_s:
                        raise RunFailedError(
                            f"not done after {timeout_s:.0f} s\n{self._said()}"
                        )
                    time.sleep(POLL_S)
                return _node_cpu_s()
            finally:
                for worker in self._workers.values():
                    worker.kill()
                    worker.wait()

    def found(self) -> list[dict[str, Any]]:
        """Return the figures of the workers that were not killed, by rank."""
        paths = [self._folder / f"{rank}.json" for rank in range(self._row.workers)]
        return [json.loads(path.read_text()) for path in paths if path.exists()]

    def _start(self, done: float) -> None:
        """Start the workers whose time has come."""
        for rank, part in enumerate(self._parts):
            if rank not in self._workers and (part.first == 0.0 or done >= HALF):
                with (self._folder / f"{rank}.txt").open("wb") as output:
                    self._workers[rank] = subprocess.Popen(
                        [sys.executable, str(WORKER), str(self._folder)],
                        env=self._env(rank),
                        stdin=subprocess.DEVNULL,
                        stdout=output,
                        stderr=subprocess.STDOUT,
                    )

    def _env(self, rank: int) -> dict[str, str]:
        """Return a worker's environment: torchrun's variables, and where the memory is."""
        per_node = self._row.workers // self._row.nodes
        told = {
            "RANK": rank,
            "WORLD_SIZE": self._row.workers,
            "LOCAL_RANK": rank % per_node,
            "LOCAL_WORLD_SIZE": per_node,
            "GROUP_RANK": rank // per_node,
            "GROUP_WORLD_SIZE": self._row.nodes,
            "OMP_NUM_THREADS": 1,
            "PYTHONUNBUFFERED": 1,
        }
        base = {name: value for name, value in os.environ.items() if "SMBOX_" not in name}
        env = base | self._run | {name: str(value) for name, value in told.items()}
        return env | ({"SMBOX_TRANSPORT": "tcp"} if self._row.nodes > 1 else {})

    def _goes_on(self) -> bool:
        """Tell whether a worker still runs.

        A worker that joins late is not waited for: once the others have ended, nobody comes.
        """
        codes = {rank: worker.poll() for rank, worker in self._workers.items()}
        for rank, code in codes.items():
            is_planned = self._parts[rank].is_killed and code == -signal.SIGKILL
            if code and not is_planned:
                raise RunFailedError(f"worker {rank} failed ({code})\n{self._said()}")
        return None in codes.values()

    def _said(self) -> str:
        """Return the end of what each worker printed."""
        paths = [self._folder / f"{rank}.txt" for rank in self._workers]
        return "\n".join(
            f"worker {path.stem}: {path.read_text(errors='replace')[-SAID_CHARACTERS:]}"
            for path in paths
        )


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _node_cpu_s() -> float:
    """Return the CPU time of the memory nodes that this process has started, in seconds."""
    nodes = [each for each in psutil.Process().children() if "memnode" in each.cmdline()]
    times = [each.cpu_times() for each in nodes]
    return float(sum(each.user + each.system for each in times))

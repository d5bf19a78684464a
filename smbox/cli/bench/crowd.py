"""Several client processes that run the same job at the same time."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec

from smbox.cli.bench.programs import stop
from smbox.cli.bench.worker import Job, Share
from smbox.errors import WorkerLostError


class Crowd:
    """Worker processes that have attached their region and wait for the word.

    Args:
        workers: the processes, each with pipes as its standard input and output.
    """

    def __init__(self, workers: list[subprocess.Popen[str]]) -> None:
        self.workers = workers

    @property
    def pids(self) -> list[int]:
        """Process ids of the workers."""
        return [worker.pid for worker in self.workers]

    def signal(self, number: int) -> None:
        """Send all workers a signal."""
        for worker in self.workers:
            worker.send_signal(number)

    def begin(self, seconds: float, count: int) -> None:
        """Let the first ``count`` workers run for ``seconds``."""
        for worker in self.workers[:count]:
            _say(worker, f"{seconds}\n")

    def end(self, count: int) -> list[Share]:
        """Wait for the first ``count`` workers and return what each did."""
        return [
            msgspec.json.decode(_hear(rank, worker), type=Share)
            for rank, worker in enumerate(self.workers[:count])
        ]

    def rate(self, seconds: float, count: int) -> float:
        """Run the first ``count`` workers together; return their bytes per second, summed."""
        self.begin(seconds, count)
        return sum(share.nbytes / share.seconds for share in self.end(count))


@contextmanager
def crowd(job: Job, count: int) -> Iterator[Crowd]:
    """Start ``count`` workers, wait until all are ready, and end them afterwards."""
    workers = [
        subprocess.Popen(
            [sys.executable, "-P", "-m", "smbox.cli.bench.worker", job.to_json()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            process_group=0,  # Ctrl-C is for the benchmark, which ends them
        )
        for _ in range(count)
    ]
    try:
        for rank, worker in enumerate(workers):
            _hear(rank, worker)
        yield Crowd(workers)
    finally:
        for worker in workers:
            stop(worker)


def _say(worker: subprocess.Popen[str], line: str) -> None:
    if worker.stdin is not None:
        worker.stdin.write(line)
        worker.stdin.flush()


def _hear(rank: int, worker: subprocess.Popen[str]) -> str:
    line = worker.stdout.readline() if worker.stdout is not None else ""
    if not line:
        raise WorkerLostError("a worker of the benchmark ended", rank=rank, exit=worker.wait())
    return line

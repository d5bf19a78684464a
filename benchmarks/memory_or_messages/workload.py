"""Soft Memory Box's workload by several processes, beside the raw transport by as many."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from typing import Final

import smbox
from memory_or_messages.programs import hear, spawn, started
from memory_or_messages.rows import PathName, Workload
from memory_or_messages.turns import in_turns
from memory_or_messages.ways import TIMEOUT_S
from memory_or_messages.workload_worker import Job
from smbox.cli.bench.crowd import Crowd
from smbox.cli.bench.programs import stop

TRANSPORTS: Final[dict[PathName, str]] = {"memory": "shm", "tcp": "tcp"}
MIB: Final = 1 << 20


def rates(row: Workload) -> dict[str, list[float]]:
    """Run the workload and the raw transport in turns.

    Returns:
        Bytes a second of all processes together, written and read, by round: of ``smbox`` and
        of ``raw``.
    """
    with ExitStack() as opened:
        memory = f"{row.processes * (row.nbytes // MIB + 40) + 256}MiB"
        box = opened.enter_context(smbox.local(memory=memory, timeout_s=TIMEOUT_S))
        ours = []
        for rank in range(row.processes):
            box.create(f"share-{rank}", shape=row.nbytes, dtype="uint8", init=1)
            told = {"transport": TRANSPORTS[row.path], "address": box.address}
            ours.append(Job(row.nbytes, region=f"share-{rank}", **told))
        peer = ["-m", "smbox.cli.bench.peer"]
        raw = [
            Job(row.nbytes, port=opened.enter_context(started(peer))["tcp_port"])
            if row.path == "tcp"
            else Job(row.nbytes)
            for _ in range(row.processes)
        ]
        crowds = {
            "smbox": opened.enter_context(_crowd(ours)),
            "raw": opened.enter_context(_crowd(raw)),
        }
        return in_turns(
            {
                name: lambda crowd=crowd: crowd.rate(row.seconds, row.processes)
                for name, crowd in crowds.items()
            },
            row.rounds,
        )


@contextmanager
def _crowd(jobs: Sequence[Job]) -> Iterator[Crowd]:
    """Start a process for each job, and end them afterwards."""
    name = "memory_or_messages.workload_worker"
    workers = [spawn(["-m", name, json.dumps(asdict(job))]) for job in jobs]
    try:
        for worker in workers:
            hear(worker)
        yield Crowd(workers)
    finally:
        for worker in workers:
            stop(worker)

"""A process of the workload: writes and reads its share in turn when told to.

Run as ``python -m memory_or_messages.workload_worker JOB``. Says ``"ready"``, then answers each
line of standard input, a number of seconds, by a ``Share`` of ``smbox bench`` as JSON.
"""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass

import msgspec
import numpy as np

import smbox
from memory_or_messages.ways import CALL_NBYTES, TIMEOUT_S
from smbox.cli.bench.limits import RawStream
from smbox.cli.bench.worker import repeat
from smbox.memory import process


@dataclass(frozen=True)
class Job:
    """What a process does.

    Attributes:
        nbytes: its share.
        transport: "shm" or "tcp", of smbox; "" to copy or stream raw bytes instead.
        address: of the memory node.
        region: its own.
        port: of a peer for raw streams; 0: copy between arrays of this process.
    """

    nbytes: int
    transport: str = ""
    address: str = ""
    region: str = ""
    port: int = 0


@contextmanager
def call_of(job: Job) -> Iterator[Callable[[], None]]:
    """Return a call that writes the share once and reads it once."""
    mine = np.ones(job.nbytes, np.uint8)
    if job.transport:
        with smbox.connect(job.address, transport=job.transport, timeout_s=TIMEOUT_S) as box:
            region = box.attach(job.region)
            yield lambda: (region.put(mine), region.get(out=mine))[0]
    elif job.port:
        stream = RawStream(job.port)
        yield lambda: (stream.put(mine, CALL_NBYTES), stream.get(mine, CALL_NBYTES))[0]
        stream.close()
    else:
        other = mine.copy()
        yield lambda: (np.copyto(other, mine), np.copyto(mine, other))[0]


def main() -> None:
    """Do the job of the command line whenever a line of standard input asks for it."""
    process.signal_on_parent_death(signal.SIGKILL)
    job = msgspec.json.decode(sys.argv[1], type=Job)
    with call_of(job) as call:
        call()
        print(json.dumps("ready"), flush=True)
        for line in sys.stdin:
            print(json.dumps(asdict(repeat(call, 2 * job.nbytes, float(line)))), flush=True)


if __name__ == "__main__":
    main()

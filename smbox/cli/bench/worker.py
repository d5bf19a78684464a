"""A client process of the benchmark: runs one verb over and over when told to.

Run as ``python -m smbox.cli.bench.worker JOB`` with the job as JSON. Says ``ready`` on its
standard output, then answers each line of standard input, a number of seconds, by a line of
JSON telling how many bytes it moved in how many seconds; ends when its input does.
"""

from __future__ import annotations

import contextlib
import json
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Final

import msgspec
import numpy as np

from smbox.connecting import connect
from smbox.memory import process
from smbox.region import Region

VERBS: Final = ("get", "put", "accumulate", "elastic")
MOVING_RATE: Final = 0.1
TIMEOUT_S: Final = 300.0  # eight clients share one node, with half a gigabyte each


@dataclass(frozen=True, slots=True)
class Job:
    """What a worker does.

    Attributes:
        address: of the memory node.
        transport: ``"shm"`` or ``"tcp"``.
        region: name of a float32 region.
        verb: one of ``VERBS``.
        nbytes: of one call; the region has at least as many.
    """

    address: str
    transport: str
    region: str
    verb: str
    nbytes: int

    def to_json(self) -> str:
        """Return the job as the worker's argument."""
        return json.dumps(asdict(self))


@dataclass(frozen=True, slots=True)
class Share:
    """What one worker did: bytes moved, in seconds, in so many calls."""

    nbytes: int
    seconds: float
    calls: int


def verb_of(region: Region, job: Job) -> Callable[[], object]:
    """Return the call that the job repeats, on the first bytes of the region."""
    mine = np.ones(job.nbytes // region.dtype.itemsize, region.dtype)
    target = region[: mine.size]
    if job.verb == "get":
        return lambda: target.get(out=mine)
    if job.verb == "put":
        return lambda: target.put(mine)
    if job.verb == "elastic":
        return lambda: target.elastic(mine, MOVING_RATE)
    return lambda: target.accumulate(mine)


def repeat(call: Callable[[], object], nbytes: int, seconds: float) -> Share:
    """Call for ``seconds``, at least once."""
    begin = time.perf_counter()
    calls = 0
    while True:
        call()
        calls += 1
        passed = time.perf_counter() - begin
        if passed >= seconds:
            return Share(nbytes * calls, passed, calls)


def main() -> None:
    """Do the job of the command line whenever a line of standard input asks for it."""
    process.signal_on_parent_death(
        signal.SIGKILL
    )  # for one that is stopped never sees its input end
    job = msgspec.json.decode(sys.argv[1], type=Job)
    with connect(job.address, transport=job.transport, timeout_s=TIMEOUT_S) as box:
        call = verb_of(box.attach(job.region, timeout_s=1.0), job)
        call()
        print("ready", flush=True)
        for line in sys.stdin:
            print(json.dumps(asdict(repeat(call, job.nbytes, float(line)))), flush=True)


if __name__ == "__main__":
    with contextlib.suppress(BrokenPipeError):  # who asked is gone
        main()

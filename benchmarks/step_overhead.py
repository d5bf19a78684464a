"""What a step of each algorithm costs beside a step of plain torch, and where the time goes.

python benchmarks/step_overhead.py [--rounds 30] [--only 'EASGD*'] [--transport tcp] [--json]

Two workers with one thread each train a network of 0.5 million parameters, over mapped memory
unless another transport is asked for. Means inside a host are in mapped memory always.
Blocks of steps alternate: plain torch, an algorithm, plain torch, the next one, and so on;
each algorithm is compared with the plain block right before it. The overhead is the median of
these ratios over all rounds and both workers, and its spread the range of their middle half. A
second pass samples the stack (``step_profile``) and tells exchange, copies, waiting and Python
apart, as shares of a plain step: their sum is about the overhead.

Goals are met if the median meets them. With ``overlap`` a step shall not be slower than
without, within the spread. Both workers and the memory node need a core of their own, or all
figures are those of the scheduler.
"""

from __future__ import annotations

import fnmatch
import json
import os
import socket
import statistics
import subprocess
import sys
import uuid
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import command_line
import pages
from step_contest import ALGORITHMS, TIMEOUT_S, WORKERS, Times
from step_profile import CATEGORIES

import smbox

MEMORY: Final = "256MiB"
WORKER: Final = Path(__file__).with_name("step_contest.py")


@dataclass(frozen=True)
class Line:
    """One line of the table; overhead, bounds, goal and shares are shares of a plain step."""

    name: str
    plain_ms: float
    own_ms: float
    overhead: float
    low: float
    high: float
    goal: str
    verdict: str
    shares: dict[str, float]


def measure(names: Sequence[str], rounds: int, transport: str = "shm") -> dict[str, Times]:
    """Measure algorithms with two workers on a memory node of their own.

    Args:
        names: keys of ALGORITHMS.
        rounds: that count.
        transport: of the box; averaging inside a host uses none.

    Raises:
        RuntimeError: a worker failed; the message holds what it printed.
    """
    told = {"names": names, "rounds": rounds, "transport": transport}
    command = [sys.executable, str(WORKER), json.dumps(told)]
    with smbox.local(memory=MEMORY) as box:
        workers = [
            subprocess.Popen(
                command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
            )
            for env in _environments(box.address)
        ]
        try:
            limit_s = TIMEOUT_S + rounds * len(names)
            printed = [worker.communicate(timeout=limit_s)[0] for worker in workers]
        finally:
            for worker in workers:
                worker.kill()
                worker.wait()
    if any(worker.returncode for worker in workers):
        raise RuntimeError("a worker failed:\n" + "\n".join(printed))
    found = [json.loads(each.splitlines()[-1]) for each in printed]
    return {name: _together([Times(**each[name]) for each in found]) for name in names}


def _environments(address: str) -> list[dict[str, str]]:
    """Return torchrun's variables of each worker, and where the memory is."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    run = {
        "SMBOX_ADDRESS": address,
        "TORCHELASTIC_RUN_ID": uuid.uuid4().hex,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
        "WORLD_SIZE": WORKERS,
        "LOCAL_WORLD_SIZE": WORKERS,
        "GROUP_RANK": 0,
        "GROUP_WORLD_SIZE": 1,
    }
    base = {name: value for name, value in os.environ.items() if "SMBOX_" not in name}
    own = [run | {"RANK": rank, "LOCAL_RANK": rank} for rank in range(WORKERS)]
    return [base | {name: str(value) for name, value in each.items()} for each in own]


def _together(found: Sequence[Times]) -> Times:
    """Join the times of all workers; shares are their means."""
    return Times(
        [ms for each in found for ms in each.plain_ms],
        [ms for each in found for ms in each.own_ms],
        {
            name: statistics.fmean(each.shares[name] for each in found)
            for name in found[0].shares
        },
    )


def lines(times: dict[str, Times]) -> list[Line]:
    """Return the lines of the table."""
    told = []
    for name, mine in times.items():
        low, overhead, high = (each - 1.0 for each in _quartiles(mine.ratios))
        algorithm = ALGORITHMS[name]
        other = times.get(algorithm.overlaps or "")
        goal, verdict = "", ""
        if algorithm.goal is not None:
            goal, verdict = f"{algorithm.goal:.0%}", _verdict(overhead <= algorithm.goal)
        elif other is not None:
            more = [a / b for a, b in zip(mine.ratios, other.ratios, strict=True)]
            goal = "no slower than without"
            verdict = _verdict(_quartiles(more)[0] <= 1.0)
        plain_ms, own_ms = statistics.median(mine.plain_ms), statistics.median(mine.own_ms)
        told.append(
            Line(name, plain_ms, own_ms, overhead, low, high, goal, verdict, mine.shares)
        )
    return told


def _verdict(is_met: object) -> str:
    return "met" if is_met else "missed"


def _quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, middle, high


def table(told: Sequence[Line]) -> str:
    """Lay out the lines as Markdown."""
    head = ("algorithm", "plain ms", "ms", "overhead", "middle half", "goal", "", *CATEGORIES)
    cells = [
        (
            line.name,
            f"{line.plain_ms:.2f}",
            f"{line.own_ms:.2f}",
            f"{line.overhead:+.1%}",
            f"{line.low:+.1%} to {line.high:+.1%}",
            line.goal,
            line.verdict,
            *(f"{line.shares[name]:.1%}" for name in CATEGORIES),
        )
        for line in told
    ]
    return pages.table(head, cells)


def main(words: Sequence[str] | None = None) -> None:
    """Measure what the command line asks for."""
    parser = command_line.parser(__doc__, "json")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--only", default="*", help="one glob; names have commas")
    parser.add_argument("--transport", default="shm", choices=["shm", "tcp"])
    read = parser.parse_args(words)
    names = [name for name in ALGORITHMS if fnmatch.fnmatchcase(name, read.only)]
    if not names:
        parser.error(f"--only {read.only} names none of {', '.join(ALGORITHMS)}")
    told = lines(measure(names, read.rounds, read.transport))
    if read.json:
        print(json.dumps([asdict(line) for line in told]))
    else:
        print(table(told))


if __name__ == "__main__":
    main()

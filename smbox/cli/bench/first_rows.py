"""Rows of a new process: its import time and its slowest call."""

from __future__ import annotations

import statistics
import subprocess
import sys
from collections.abc import Iterator
from typing import Final

import msgspec

from smbox.cli.bench.first_calls import FirstCalls
from smbox.cli.bench.lab import Lab
from smbox.cli.bench.result import Result, figure_at_most

IMPORT_GOAL_S: Final = 0.25
STALL_GOAL_MS: Final = 20.0
CALLS_PER_SCALE: Final = 15
"""Calls of each verb, for each small call of the scale: 30,000 in a full run."""

IMPORTS: Final = 5
IMPORT: Final = """
import time
begin = time.perf_counter()
import smbox
print(time.perf_counter() - begin)
"""

TIMEOUT_S: Final = 600.0


def first_calls(lab: Lab) -> Iterator[Result]:
    """Let fresh processes call each verb from their first call on."""
    calls = CALLS_PER_SCALE * lab.scale.calls
    for transport, limit_name in (("shm", "np.copyto"), ("tcp", "bare pyzmq ping-pong")):
        found = _run(lab, transport, calls)
        for verb, seconds in found.slowest_s.items():
            yield Result(
                row="first calls",
                case=f"{transport} slowest {verb} of {calls}",
                figure=(seconds - found.bare_s) * 1e3,
                unit="ms more",
                goal=figure_at_most(STALL_GOAL_MS),
                limit=found.bare_s * 1e3,
                limit_name=f"slowest {limit_name}",
            )
    yield Result(
        row="first calls",
        case="import smbox",
        figure=statistics.median(_import_s() for _ in range(IMPORTS)),
        unit="s",
        goal=figure_at_most(IMPORT_GOAL_S),
    )


def _run(lab: Lab, transport: str, calls: int) -> FirstCalls:
    program = ["-P", "-m", "smbox.cli.bench.first_calls"]
    found = _python(*program, lab.address, transport, str(lab.zmq_port), str(calls))
    return msgspec.json.decode(found, type=FirstCalls)


def _import_s() -> float:
    return float(_python("-P", "-c", IMPORT))


def _python(*arguments: str) -> str:
    """Run a fresh interpreter; return what it prints."""
    return subprocess.run(
        [sys.executable, *arguments],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        timeout=TIMEOUT_S,
        process_group=0,  # Ctrl-C is for the benchmark, which kills it then
    ).stdout

"""Rows with many clients: on one local region, over tcp, and the memory use of the node."""

from __future__ import annotations

import math
import signal
import statistics
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from smbox.cli.bench.crowd import Crowd, crowd
from smbox.cli.bench.lab import Lab, ones, open_lab
from smbox.cli.bench.measure import percentile
from smbox.cli.bench.result import (
    GIGABYTE,
    MEBIBYTE,
    Result,
    at_least,
    figure_at_most,
    size_name,
)
from smbox.cli.bench.worker import VERBS, Job, Share

LOCAL_CLIENTS: Final = 4
TCP_CLIENTS: Final = 8
FEW_CLIENTS: Final = (1, 2, 3, 4)
TCP_NBYTES: Final = 16 * MEBIBYTE
SMALL_NBYTES: Final = 4096
P99_GOAL_MS: Final = 20.0
GROWTH_GOAL_MIB: Final = 32.0
MEMORY_GOAL_MIB: Final = 64.0
MIXED_NBYTES: Final = 1 << 30
SAMPLE_S: Final = 0.01
SETTLE_S: Final = 0.5
SETTLE_MAX_S: Final = 20.0


def local_crowd(lab: Lab) -> Iterator[Result]:
    """Let four local clients add to one region, and a small client wait beside them."""
    nbytes = lab.scale.big_nbytes
    with lab.region(lab.local, nbytes) as region, lab.region(lab.local, SMALL_NBYTES) as small:
        job = Job(lab.address, "shm", region.name, "accumulate", nbytes)
        with crowd(job, LOCAL_CLIENTS) as clients:
            rates = _rates(lab, clients, (1, LOCAL_CLIENTS))
            yield Result(
                row="local crowd",
                case=f"{LOCAL_CLIENTS} clients accumulate {size_name(nbytes)}",
                figure=rates[LOCAL_CLIENTS],
                unit="GB/s",
                goal=at_least(1.0),
                limit=rates[1],
                limit_name="one client",
            )
            mine, part = ones(SMALL_NBYTES), region[: SMALL_NBYTES // 4]
            clients.begin(lab.scale.crowd_s, LOCAL_CLIENTS)
            busy = _while_busy(lambda: part.accumulate(mine), lab.scale.crowd_s * 0.9)
            clients.end(LOCAL_CLIENTS)
        alone = _while_busy(lambda: small.accumulate(mine), lab.scale.crowd_s * 0.2)
        yield Result(
            row="local crowd",
            case="accumulate 4 KiB p99 beside them",
            figure=percentile(busy, 99) * 1e3,
            unit="ms",
            goal=figure_at_most(P99_GOAL_MS),
            limit=percentile(alone, 99) * 1e3,
            limit_name="the same alone",
        )


def tcp_crowd(lab: Lab) -> Iterator[Result]:
    """Compare eight clients at once with the best that one to four of them reach."""
    with lab.region(lab.remote, TCP_NBYTES) as region:
        for verb in ("get", "put"):
            job = Job(lab.address, "tcp", region.name, verb, TCP_NBYTES)
            with crowd(job, TCP_CLIENTS) as clients:
                rates = _rates(lab, clients, (*FEW_CLIENTS, TCP_CLIENTS))
            best = max((rates[count], count) for count in FEW_CLIENTS)
            yield Result(
                row="tcp crowd",
                case=f"{TCP_CLIENTS} clients {verb} {size_name(TCP_NBYTES)}",
                figure=rates[TCP_CLIENTS],
                unit="GB/s",
                goal=at_least(0.85),
                limit=best[0],
                limit_name=f"best of 1 to {FEW_CLIENTS[-1]}: {best[1]}",
            )


def node_growth(lab: Lab) -> Iterator[Result]:
    """Watch a fresh node's own memory while eight clients put, and while they do not read."""
    cases = (
        ("put", False, "put"),
        ("get", True, "stop in a get of"),
        ("elastic", True, "stop in an elastic of"),
    )
    for verb, pauses, case in cases:
        with open_lab(lab.scale) as fresh:
            before, most = _growth(fresh, verb, pauses=pauses)
        yield Result(
            row="node growth",
            case=f"{TCP_CLIENTS} clients {case} {size_name(lab.scale.huge_nbytes)}",
            figure=(most - before) / MEBIBYTE,
            unit="MiB",
            goal=figure_at_most(GROWTH_GOAL_MIB),
            limit=before / MEBIBYTE,
            limit_name="before, with one client served",
        )


def node_memory(lab: Lab) -> Iterator[Result]:
    """Look at a fresh node's own memory after four clients have moved a gigabyte."""
    nbytes = min(TCP_NBYTES, lab.scale.big_nbytes)
    least = min(MIXED_NBYTES, 10 * lab.scale.big_nbytes)
    with open_lab(lab.scale) as fresh, ExitStack() as opened:
        region = opened.enter_context(fresh.region(fresh.remote, nbytes))
        jobs = [Job(fresh.address, "tcp", region.name, verb, nbytes) for verb in VERBS]
        crowds = [opened.enter_context(crowd(job, 1)) for job in jobs]
        moved = 0
        while moved < least:
            for each in crowds:
                each.begin(lab.scale.crowd_s, 1)
            moved += sum(each.end(1)[0].nbytes for each in crowds)
        most = anonymous_nbytes(fresh.node_pid)
    yield Result(
        row="node memory",
        case=f"after {least >> 20} MiB of {len(crowds)} clients, a verb each",
        figure=most / MEBIBYTE,
        unit="MiB",
        goal=figure_at_most(MEMORY_GOAL_MIB),
    )


def _growth(lab: Lab, verb: str, *, pauses: bool) -> tuple[int, int]:
    """Return the node's own bytes before and at most while eight clients do as told.

    With ``pauses`` they are stopped in the middle for half of the time, with replies under way.
    """
    nbytes, seconds = lab.scale.huge_nbytes, lab.scale.crowd_s
    with lab.region(lab.remote, nbytes) as region:
        region.put(ones(nbytes))
        before = _settled_nbytes(lab.node_pid)
        job = Job(lab.address, "tcp", region.name, verb, nbytes)
        with crowd(job, TCP_CLIENTS) as clients, ThreadPoolExecutor(1) as waiting:
            clients.begin(seconds, TCP_CLIENTS)
            ended = waiting.submit(clients.end, TCP_CLIENTS)
            most = before
            if pauses:
                time.sleep(seconds / 4)
                with _stopped(clients):
                    most = _most(lab.node_pid, time.monotonic() + seconds / 2, ended)
            most = max(most, _most(lab.node_pid, math.inf, ended))
            ended.result()
    return before, most


@contextmanager
def _stopped(clients: Crowd) -> Iterator[None]:
    """Stop all clients in this block; whoever waits for them must not do so for ever."""
    try:
        clients.signal(signal.SIGSTOP)
        yield
    finally:
        clients.signal(signal.SIGCONT)


def _most(pid: int, until_s: float, ended: Future[list[Share]]) -> int:
    """Return the most that a process's own memory is until a time, or until the end."""
    most = anonymous_nbytes(pid)
    while not ended.done() and time.monotonic() < until_s:
        time.sleep(SAMPLE_S)
        most = max(most, anonymous_nbytes(pid))
    return most


def anonymous_nbytes(pid: int) -> int:
    """Return the bytes of a process's own memory: neither files nor shared segments."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Anonymous:"):
            return int(line.split()[1]) * 1024
    return 0


def _settled_nbytes(pid: int) -> int:
    """Return a process's own memory once it has what it keeps: compiled kernels, buffers."""
    deadline = time.monotonic() + SETTLE_MAX_S
    nbytes, last = anonymous_nbytes(pid), -1
    while nbytes != last and time.monotonic() < deadline:
        time.sleep(SETTLE_S)
        nbytes, last = anonymous_nbytes(pid), nbytes
    return nbytes


def _rates(lab: Lab, clients: Crowd, counts: tuple[int, ...]) -> dict[int, float]:
    """Measure the summed rate of so many clients in GB/s: medians of interleaved rounds."""
    found: dict[int, list[float]] = {count: [] for count in counts}
    for _ in range(lab.scale.crowd_rounds):
        for count in counts:
            found[count].append(clients.rate(lab.scale.crowd_s, count) / GIGABYTE)
    return {count: statistics.median(rates) for count, rates in found.items()}


def _while_busy(call: Callable[[], object], seconds: float) -> list[float]:
    """Time calls one by one for so many seconds."""
    samples: list[float] = []
    deadline = time.perf_counter() + seconds
    while time.perf_counter() < deadline:
        begin = time.perf_counter()
        call()
        samples.append(time.perf_counter() - begin)
    return samples

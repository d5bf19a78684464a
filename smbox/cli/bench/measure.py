"""Timing of several calls: interleaved, by medians, with their CPU time.

A and B take turns within every round, and every second round runs backwards, so that a
neighbour who slows this machine down for a while slows both down. The clock is given.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import psutil

WARM_UP_ROUNDS: Final = 1


@dataclass(frozen=True, slots=True)
class Timing:
    """How long one call took.

    Attributes:
        seconds: the median of the rounds.
        cpu_s: CPU seconds per call, the mean of the rounds (its clock ticks are coarse).
        samples: seconds of each round.
    """

    seconds: float
    cpu_s: float
    samples: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Clocks:
    """Where time comes from.

    Attributes:
        now_s: monotonic seconds.
        cpu_s: CPU seconds that all processes taking part have used so far.
    """

    now_s: Callable[[], float]
    cpu_s: Callable[[], float]


def interleave(
    calls: Mapping[str, Callable[[], object]],
    *,
    rounds: int,
    clocks: Clocks,
    repeats: int = 1,
) -> dict[str, Timing]:
    """Time every call ``rounds`` times, taking turns, after a round to warm up.

    Args:
        calls: what to time.
        rounds: how often.
        clocks: where time comes from; reading them takes some microseconds, and their caches.
        repeats: calls in a row per turn, for short ones; the timing is that of one.

    Returns:
        The timing of each call, by its name.
    """
    samples: dict[str, list[float]] = {name: [] for name in calls}
    cpu: dict[str, float] = dict.fromkeys(calls, 0.0)
    for round_number in range(WARM_UP_ROUNDS + rounds):
        for name in _turns(list(calls), round_number):
            cpu_before, before = clocks.cpu_s(), clocks.now_s()
            for _ in range(repeats):
                calls[name]()
            seconds = (clocks.now_s() - before) / repeats
            cpu_used = (clocks.cpu_s() - cpu_before) / repeats
            if round_number >= WARM_UP_ROUNDS:
                samples[name].append(seconds)
                cpu[name] += cpu_used
    return {
        name: Timing(statistics.median(found), cpu[name] / rounds, tuple(found))
        for name, found in samples.items()
    }


def _turns(names: list[str], round_number: int) -> list[str]:
    return names if round_number % 2 == 0 else names[::-1]


def percentile(samples: Sequence[float], percent: float) -> float:
    """Return the smallest sample that at least ``percent`` of all samples do not exceed."""
    ordered = sorted(samples)
    return ordered[max(0, -(-len(ordered) * percent // 100).__trunc__() - 1)]


def each_s(
    call: Callable[[], object], *, count: int, now_s: Callable[[], float]
) -> list[float]:
    """Time ``count`` calls one by one, in seconds."""
    found = []
    for _ in range(count):
        before = now_s()
        call()
        found.append(now_s() - before)
    return found


def cpu_seconds(pids: Sequence[int]) -> float:
    """Return the CPU seconds that the processes ``pids`` have used, user and system."""
    total = 0.0
    for pid in pids:
        times = psutil.Process(pid).cpu_times()
        total += times.user + times.system
    return total

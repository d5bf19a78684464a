"""Interleaved timing with a clock of our own."""

from __future__ import annotations

import os

import pytest

from smbox.cli.bench.measure import Clocks, cpu_seconds, each_s, interleave, percentile


class Clock:
    """Time that passes only when a call says so."""

    def __init__(self) -> None:
        self.wall_s = 0.0
        self.cpu_s = 0.0

    def spend(self, wall_s: float, cpu_s: float = 0.0) -> None:
        self.wall_s += wall_s
        self.cpu_s += cpu_s


def test_calls_take_turns_and_every_second_round_runs_backwards():
    clock, order = Clock(), []
    clocks = Clocks(lambda: clock.wall_s, lambda: clock.cpu_s)
    interleave(
        {"a": lambda: order.append("a"), "b": lambda: order.append("b")},
        rounds=3,
        clocks=clocks,
    )
    assert "".join(order) == "abbaabba"


def test_medians_and_cpu_leave_the_warm_up_out():
    clock = Clock()
    takes = iter([100.0, 3.0, 1.0, 2.0])
    clocks = Clocks(lambda: clock.wall_s, lambda: clock.cpu_s)
    timing = interleave({"a": lambda: clock.spend(next(takes), 0.5)}, rounds=3, clocks=clocks)[
        "a"
    ]
    assert timing.samples == (3.0, 1.0, 2.0)
    assert (timing.seconds, timing.cpu_s) == (2.0, 0.5)


def test_the_time_of_a_short_call_is_that_of_many_in_a_row():
    clock = Clock()
    clocks = Clocks(lambda: clock.wall_s, lambda: clock.cpu_s)
    calls = {"a": lambda: clock.spend(2.0, 1.0)}
    timing = interleave(calls, rounds=1, clocks=clocks, repeats=4)["a"]
    assert clock.wall_s == 16.0
    assert (timing.seconds, timing.cpu_s) == (2.0, 1.0)


@pytest.mark.parametrize(
    ("percent", "expected"), [(1, 1), (50, 50), (99, 99), (99.5, 100), (100, 100)]
)
def test_percentiles_are_samples(percent, expected):
    assert percentile([float(value) for value in range(100, 0, -1)], percent) == expected


def test_a_percentile_of_one_sample_is_that_sample():
    assert percentile([7.0], 50) == 7.0


def test_calls_are_timed_one_by_one():
    clock = Clock()
    takes = iter([1.0, 2.0, 3.0])
    assert each_s(lambda: clock.spend(next(takes)), count=3, now_s=lambda: clock.wall_s) == [
        1,
        2,
        3,
    ]


def test_cpu_time_adds_processes_up():
    mine = cpu_seconds([os.getpid()])
    assert mine > 0
    assert cpu_seconds([os.getpid(), os.getpid()]) >= 2 * mine

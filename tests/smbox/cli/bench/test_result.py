"""Figures, limits and goals."""

from __future__ import annotations

import json

import pytest

from smbox.cli.bench.result import Goal, Result, at_least, at_most, figure_at_most, size_name


def result(figure: float, goal: Goal, limit: float | None = None) -> Result:
    return Result(row="r", case="c", figure=figure, unit="GB/s", goal=goal, limit=limit)


@pytest.mark.parametrize(
    ("figure", "limit", "goal", "is_met"),
    [
        (9.0, 10.0, at_least(0.9), True),
        (8.9, 10.0, at_least(0.9), False),
        (13.0, 10.0, at_most(1.3), True),
        (13.1, 10.0, at_most(1.3), False),
        (5.0, 1.0, figure_at_most(5.0), True),
        (5.1, 100.0, figure_at_most(5.0), False),
        (9.0, None, at_least(0.9), False),
        (9.0, 0.0, at_least(0.9), False),
    ],
)
def test_goals_judge_ratio_or_figure(figure, limit, goal, is_met):
    assert result(figure, goal, limit).is_met is is_met


@pytest.mark.parametrize("goal", [at_least(0.85), at_most(1.3), figure_at_most(80)])
def test_a_goal_is_read_as_it_was_written(goal):
    assert Goal.read(goal.text) == goal


def test_a_result_becomes_json():
    told = json.loads(json.dumps(result(5.0, at_least(0.9), 10.0).as_dict()))
    assert told["ratio"] == 0.5
    assert told["goal"] == "ratio >= 0.9"
    assert told["met"] is False


@pytest.mark.parametrize(
    ("nbytes", "name"), [(4096, "4 KiB"), (1 << 20, "1 MiB"), (528 << 20, "528 MiB")]
)
def test_sizes_have_names(nbytes, name):
    assert size_name(nbytes) == name

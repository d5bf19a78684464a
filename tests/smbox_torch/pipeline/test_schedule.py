"""Schedules by themselves: every task once, in order, within their bounds, never stuck."""

from __future__ import annotations

import itertools

import pytest

from smbox_torch.pipeline.schedule import SCHEDULES, Task

SIZES = list(itertools.product(range(1, 6), range(1, 9)))


def held_max(tasks: list[Task]) -> int:
    counts = itertools.accumulate(1 if task.kind == "forward" else -1 for task in tasks)
    return max(counts)


@pytest.mark.parametrize("name", SCHEDULES)
def test_every_micro_batch_goes_forward_and_backward_in_order(name):
    for stages, count in SIZES:
        for stage in range(stages):
            tasks = SCHEDULES[name](stage, stages, count)
            for kind in ("forward", "backward"):
                assert [t.micro_batch for t in tasks if t.kind == kind] == list(range(count))
            for number in range(count):
                forward, backward = Task("forward", number), Task("backward", number)
                assert tasks.index(forward) < tasks.index(backward)


def test_gpipe_keeps_all_micro_batches_and_1f1b_as_many_as_stages():
    for stages, count in SIZES:
        for stage in range(stages):
            kept = {
                name: held_max(make(stage, stages, count)) for name, make in SCHEDULES.items()
            }
            assert kept == {"gpipe": count, "1f1b": min(stages - stage, count)}


def test_1f1b_by_hand():
    tasks = SCHEDULES["1f1b"](0, 3, 4)
    assert " ".join(f"{t.kind[0]}{t.micro_batch}" for t in tasks) == "f0 f1 f2 b0 f3 b1 b2 b3"


@pytest.mark.parametrize("slots", [1, 2])
@pytest.mark.parametrize("name", SCHEDULES)
def test_no_schedule_gets_stuck_with_one_slot(name, slots):
    """Stages as machines that stop where a message, or a free slot, is missing."""
    for stages, count in SIZES:
        left = [SCHEDULES[name](stage, stages, count) for stage in range(stages)]
        rings = {(way, stage): 0 for way in ("forward", "backward") for stage in range(stages)}
        moved = True
        sending: list[tuple[str, int] | None] = [None] * stages
        while moved:
            moved = False
            for stage in range(stages):
                if (ring := sending[stage]) is not None:
                    if rings[ring] < slots:
                        rings[ring] += 1
                        sending[stage] = None
                        moved = True
                    continue
                if not left[stage]:
                    continue
                way = left[stage][0].kind
                first, last = (0, stages - 1) if way == "forward" else (stages - 1, 0)
                if stage != first:
                    if not rings[way, stage]:
                        continue
                    rings[way, stage] -= 1
                left[stage].pop(0)
                moved = True
                if stage != last:
                    sending[stage] = (way, stage + (1 if way == "forward" else -1))
        assert left == [[] for _ in range(stages)]
        assert sending == [None] * stages

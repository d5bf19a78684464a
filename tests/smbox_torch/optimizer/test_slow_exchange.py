"""A worker that mostly waits for exchanges is told, once."""

from __future__ import annotations

import warnings

import pytest
import torch

import smbox
from smbox_torch import EASGD, SlowExchangeWarning
from smbox_torch.optimizer.slow_exchange import Watch


def steps_of(*shares: float, stops: dict[int, float] | None = None) -> list[str]:
    """Do steps of 3 s, of which these shares are waiting; return the warnings, step by step.

    Step i waits for ``stops[i]`` further seconds.
    """
    now_s = waited_s = 0.0
    told: list[str] = []
    watch = Watch(lambda: now_s)
    for number, share in enumerate(shares, 1):
        stop_s = (stops or {}).get(number, 0.0)
        now_s += 3.0 + stop_s
        waited_s += 3.0 * share + stop_s
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            watch.observe(waited_s, nbytes=number * 102_000_000, exchanges=number)
        told.append(" ".join(str(each.message) for each in caught))
    return told


def test_a_worker_that_mostly_waits_is_told_once():
    told = steps_of(*[0.9] * 9)
    (only,) = filter(None, told)
    assert "of 102 MB each" in only
    assert "period=" in only
    assert "stats()" in only


def test_a_worker_that_mostly_computes_is_told_nothing():
    assert not any(steps_of(*[0.05] * 200))
    assert not any(steps_of(*[0.05] * 200, 0.8, 0.8))


def test_a_node_that_is_restarted_once_is_no_slow_exchange():
    assert not any(steps_of(*[0.05] * 40, stops={3: 60.0}))


def test_a_worker_that_mostly_waits_is_told_although_the_node_was_restarted():
    assert any(steps_of(*[0.9] * 12, stops={3: 60.0}))


def test_a_worker_that_begins_to_wait_is_told_although_the_node_was_restarted_before():
    assert any(steps_of(*[0.05] * 100, *[0.9] * 20, stops={3: 60.0}))


def test_a_worker_with_long_waits_is_told():
    assert any(steps_of(*[0.9] * 3, stops=dict.fromkeys((1, 2, 3), 20.0)))


def test_a_wrapped_optimizer_looks_at_each_step():
    model = torch.nn.Linear(4, 1)
    sgd = torch.optim.SGD(model.parameters(), lr=0.01)
    with smbox.local(memory="64MiB") as box, EASGD(sgd, box, "run", workers=1) as optimizer:
        optimizer.step()
        optimizer.recorder.waited(3600.0)
        with pytest.warns(SlowExchangeWarning, match="waiting for exchanges"):
            optimizer.step()

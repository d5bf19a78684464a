"""The contract of atomic operations on whole regions: snapshots and optimizer steps."""

from __future__ import annotations

from typing import Any

import numpy as np

from smbox.dtypes import by_name
from smbox.errors import ConfigError, LayoutMismatchError, RegionFreedError
from smbox.memory.kernels import OPTIMIZERS
from smbox.testing.contract_tools import (
    STRIPE,
    in_threads,
    raises,
    region_of,
    same,
    values,
)
from smbox.testing.kernels import stepped

F32 = by_name("float32")


def check_snapshots(box: Any) -> None:
    """All stripes of a snapshot are as they were at one moment, despite concurrent writers."""
    count = 3 * STRIPE + 5
    x = values(count, F32)
    with region_of(box, x) as region:
        same(region.get(snapshot=True), x)
        out = np.empty(count - 9, np.float32)
        assert region[4:-5].get(out=out, snapshot=True) is out
        same(out, x[4:-5])
        same(region.get_nb(snapshot=True).result(), x)
        assert region[2:2].get(snapshot=True).size == 0
    with region_of(box, x, "none") as hogwild, raises(ConfigError):
        hogwild.get(snapshot=True)


def check_snapshots_among_writers(box: Any) -> None:
    """A writer goes up the stripes in order, so a snapshot sees a step down, never up."""
    with region_of(box, np.zeros(4 * STRIPE, np.float32)) as region:
        ones = np.ones(4 * STRIPE, np.float32)

        def job(index: int) -> None:
            for _ in range(6):
                if index:
                    seen = region.get(snapshot=True)[::STRIPE]
                    assert (np.diff(seen) <= 0).all(), seen
                    assert seen[0] - seen[-1] <= 1, seen
                else:
                    region.accumulate(ones)

        in_threads(3, job)
        same(region.get(snapshot=True), ones * 6)


def check_optimizers(box: Any) -> None:
    """Steps at the node equal the numpy oracle's, in parameters and state."""
    count = STRIPE + 5
    begin, gradient = values(count, F32, 1), values(count, F32, 2)
    for code, row in OPTIMIZERS.items():
        by = dict(zip(row.parameters, (0.1, 0.5, 0.25, 1e-3), strict=False))
        given = by | dict.fromkeys(row.initial, 0.5)
        begins = [given.get(name, 0.0) for name in row.states.values()]
        states = [np.full(count, value, np.float32) for value in begins]
        wanted = begin
        with region_of(box, begin) as region:
            optimizer = box.optimizer(region, code.name.lower(), **given)
            for step in (1, 2):
                optimizer.step(gradient)
                wanted, *states = stepped(code, wanted, states, gradient, [*by.values()], step)
            same(region.get(), wanted)
            for name, state in zip(row.states, states, strict=True):
                same(optimizer.states[name].get(), state)
            again = box.optimizer(region, code.name.lower(), **by)
            again.step_nb(gradient).wait(timeout_s=60.0)
            wanted = stepped(code, wanted, states, gradient, [*by.values()], 3)[0]
            same(region.get(), wanted)
            optimizer.free()


def check_optimizers_that_do_not_fit(box: Any) -> None:
    """Names, parameters, dtypes and gradients are checked before anything is changed."""
    x = values(6, F32)
    with region_of(box, x) as region:
        with raises(ConfigError):
            box.optimizer(region, "lion", lr=0.1)
        with raises(ConfigError):
            box.optimizer(region, "adam", lr=0.1, momentum=0.9)
        with raises(ConfigError):
            box.optimizer(region, "adam", lr=-1.0)
        for value in (-0.1, float("inf"), 1e39):
            with raises(ConfigError):
                box.optimizer(region, "adagrad", lr=1.0, initial_accumulator_value=value)
        with raises(ConfigError):
            box.optimizer(region, "adam", lr=1.0, initial_accumulator_value=0.1)
        optimizer = box.optimizer(region, "momentum", lr=0.5)
        with raises(LayoutMismatchError):
            optimizer.step(np.zeros(5, np.float32))
        with raises(ConfigError):
            optimizer.step(x, lr=-1.0)
        same(region.get(), x)
        optimizer.step(x, lr=1.0)
        same(region.get(), x - x)
        optimizer.free()
        with raises(RegionFreedError):
            optimizer.step(x)
    with region_of(box, np.zeros(3, np.int32)) as region, raises(ConfigError):
        box.optimizer(region, "adam", lr=0.1)

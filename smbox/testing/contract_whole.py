"""The contract of what is all or nothing: regions that change as a whole, snapshots, steps."""

from __future__ import annotations

from typing import Any

import numpy as np

from smbox.dtypes import by_name
from smbox.errors import ConfigError, LayoutMismatchError, RegionFreedError
from smbox.memory.kernels import KernelCode, elastic_delta, scale_of
from smbox.memory.optimizers import OPTIMIZERS
from smbox.testing.contract_tools import (
    COUNTS,
    STRIPE,
    in_threads,
    raises,
    region_of,
    same,
    values,
)

F32 = by_name("float32")


def check_whole_verbs(box: Any) -> None:
    """A region that changes as a whole has the same verbs with the same results."""
    for count in COUNTS:
        x, y = values(count, F32, 1), values(count, F32, 2)
        with region_of(box, y, "region") as region:
            version = region.version
            same(region.get(), y)
            region.accumulate(x, scale=0.5)
            now = y + np.float32(0.5) * x
            same(region.get(), now)
            assert region.version == version + -(-count // STRIPE)
            same(region.fetch_and_op(y, op="max"), now)
            now = np.maximum(now, y)
            out = np.empty_like(x)
            assert region.get(out=out) is out
            same(out, now)
            region.put(x)
            same(region.get(snapshot=True), x)


def check_whole_elastic(box: Any) -> None:
    """The region gains what x loses, bit for bit; with delta, x stays."""
    rate = scale_of(KernelCode.ELASTIC, F32, 0.3)
    center, x = values(2 * STRIPE + 3, F32, 5), values(2 * STRIPE + 3, F32, 6)
    delta = elastic_delta(x, center, rate)
    with region_of(box, center, "region") as region:
        moved = x.copy()
        region.elastic(moved, 0.3)
        same(moved, x - delta)
        same(region.get(), center + delta)
        region.put(center)
        out = np.empty_like(x)
        assert region.elastic(x, 0.3, delta=out) is out
        same(out, delta)


def check_whole_slices_and_handles(box: Any) -> None:
    """Slices change as a whole too; what was begun first happens first."""
    x = values(2 * STRIPE + 6, F32).reshape(-1, 2)
    with region_of(box, x, "region") as region:
        ones = np.ones_like(x[1:-1])
        handles = [region[1:-1].accumulate_nb(ones) for _ in range(3)]
        old = region[1:-1].fetch_and_op_nb(ones, op="replace")
        found = region.get_nb()
        for handle in handles:
            handle.wait(timeout_s=60.0)
        same(old.result(), x[1:-1] + 3)
        wanted = x.copy()
        wanted[1:-1] = 1
        same(found.result(), wanted)
        box.flush()


def check_whole_is_never_seen_in_part(box: Any) -> None:
    """Whoever reads sees one change or the other, on all stripes."""
    count = 2 * STRIPE + 9
    with region_of(box, np.zeros(count, np.int64), "region") as region:

        def job(index: int) -> None:
            for _ in range(5):
                region.accumulate(np.full(count, index + 1, np.int64))
                seen = region.get()
                assert (seen == seen[0]).all()

        in_threads(3, job)
        assert (region.get() == 5 * 6).all()


def check_whole_refuses_what_works_by_stripe(box: Any) -> None:
    """Rows, batches and parts of other regions are not for it."""
    x = values(8, F32)
    with region_of(box, x, "region") as region, region_of(box, x) as other:
        with raises(ConfigError):
            region.rows([0])
        with raises(ConfigError), box.batch() as batch:
            batch.put(region, x)
        for to, source in ((region, other), (other, region)):
            with raises(ConfigError):
                to.accumulate_from(source)
        with raises(LayoutMismatchError):
            region.put(np.zeros(9, np.float32))
        same(region.get(), x)
    for verb in (region.put, region.accumulate, region.fetch_and_op):
        with raises(RegionFreedError):
            verb(x)
    with raises(RegionFreedError):
        region.get()


def check_snapshots(box: Any) -> None:
    """All stripes of a snapshot are of one moment, whoever writes meanwhile."""
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
    """Steps at the memory are those of the optimizer's table, state and all."""
    count = STRIPE + 5
    begin, gradient = values(count, F32, 1), values(count, F32, 2)
    for code, row in OPTIMIZERS.items():
        by = dict(zip(row.parameters, (0.1, 0.5, 0.25, 1e-3), strict=False))
        states = [np.zeros(count, np.float32) for _ in row.states]
        wanted = begin.copy()
        with region_of(box, begin) as region:
            optimizer = box.optimizer(region, code.name.lower(), **by)
            for step in (1, 2):
                optimizer.step(gradient)
                row.run(wanted, states, gradient, tuple(by.values()), step)
            same(region.get(), wanted)
            for name, state in zip(row.states, states, strict=True):
                same(optimizer.states[name].get(), state)
            again = box.optimizer(region, code.name.lower(), **by)
            again.step_nb(gradient).wait(timeout_s=60.0)
            row.run(wanted, states, gradient, tuple(by.values()), 3)
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

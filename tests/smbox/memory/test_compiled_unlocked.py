"""Runs on lock-free regions leave what change_unlocked leaves, stripe by stripe."""

from __future__ import annotations

import platform

import numpy as np
import pytest

from smbox.memory import accel
from smbox.memory.accel import Accel
from smbox.memory.change import Change
from smbox.memory.commit import commits
from smbox.memory.kernels import KernelCode, elastic_delta
from smbox.memory.layout import STRIPE_NBYTES, Consistency, RegionHeader, RegionState, Stripe
from smbox.memory.mapped import pieces
from smbox.memory.recovery import is_open
from smbox.memory.stripe_run import commit_run
from smbox.memory.unlocked import change_unlocked

pytest.importorskip("numba", reason="without it there are no runs")
COUNT = 2 * STRIPE_NBYTES // 8 + 1002
ALL = 8 * COUNT
FIRST, LIMIT = 8 * 501, ALL - 24


@pytest.fixture(autouse=True)
def loaded(monkeypatch) -> None:
    engine = Accel({}, platform.machine()).load()
    if engine is None or engine.commit_stripes is None:
        pytest.skip("this machine may reorder stores: it has no runs")
    monkeypatch.setattr(accel, "prepare", lambda _nbytes: engine)


def numbers(dtype: type, nbytes: int, seed: int) -> np.ndarray:
    count = nbytes // np.dtype(dtype).itemsize
    found = 100 * np.random.default_rng(seed).standard_normal(count)
    return found > 0 if dtype is np.bool_ else found.astype(np.float32).astype(dtype)


def free_of_locks(make, data: np.ndarray, name: str):
    return make(data, name, consistency=Consistency.NONE)


CHANGES = {
    "replace": (KernelCode.REPLACE, np.float32, 1),
    "replace bool": (KernelCode.REPLACE, np.bool_, 1),
    "replace float16": (KernelCode.REPLACE, np.float16, 1),
    "sum": (KernelCode.SUM, np.float32, -0.3),
    "sum float64": (KernelCode.SUM, np.float64, 0.1),
    "sum int64": (KernelCode.SUM, np.int64, -7),
    "elastic": (KernelCode.ELASTIC, np.float32, 0.3),
    "elastic float64": (KernelCode.ELASTIC, np.float64, 0.3),
}


@pytest.mark.parametrize("has_answer", [True, False])
@pytest.mark.parametrize("case", CHANGES)
def test_the_bits_are_numpys(memory, make, case: str, has_answer: bool):
    kernel, dtype, scale = CHANGES[case]
    data, source = numbers(dtype, ALL, 1), numbers(dtype, LIMIT - FIRST, 2)
    fast, slow = free_of_locks(make, data, "fast"), free_of_locks(make, data, "slow")
    back = {"answer": np.zeros(LIMIT - FIRST, np.uint8)} if has_answer else {}
    change = Change(kernel, source, scale)
    assert commit_run(memory.writer, fast, FIRST, LIMIT, change, **back) == LIMIT
    for piece in pieces(FIRST, LIMIT):
        own = source.view(np.uint8)[piece.first - FIRST : piece.limit - FIRST]
        change_unlocked(slow, piece, Change(kernel, own, scale))
    assert fast.array().tobytes() == slow.array().tobytes() != data.tobytes()
    assert fast.table.tolist() == slow.table.tolist()
    assert fast.version() == commits(memory.writer) == 3
    assert not is_open(memory.writer.words)
    if has_answer:
        assert back["answer"].tobytes() == data.tobytes()[FIRST:LIMIT]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("how", ["moved", "delta"])
def test_an_elastic_exchange_hands_back_the_same_bits(memory, make, dtype: type, how: str):
    center, x = numbers(dtype, ALL, 1), numbers(dtype, ALL, 2)
    region, delta = free_of_locks(make, center, "r"), elastic_delta(x, center, dtype(0.3))
    moving = x.copy()
    back = moving if how == "moved" else np.zeros_like(x)
    change = Change(KernelCode.ELASTIC, moving, 0.3)
    assert commit_run(memory.writer, region, 0, ALL, change, **{how: back}) == ALL
    assert region.array().tobytes() == (center + delta).tobytes()
    assert back.tobytes() == (x - delta if how == "moved" else delta).tobytes()


def test_a_freed_region_stops_it(memory, make):
    data = numbers(np.float32, ALL, 1)
    region = free_of_locks(make, data, "r")
    region.header[RegionHeader.STATE] = RegionState.FREED
    change = Change(KernelCode.REPLACE, data + np.float32(1))
    assert commit_run(memory.writer, region, 0, ALL, change) == 0
    assert region.array().tobytes() == data.tobytes()
    assert region.version() == commits(memory.writer) == 0


def test_no_lock_is_in_its_way(memory, make):
    data = numbers(np.float32, ALL, 1)
    region = free_of_locks(make, data, "r")
    region.table[1, Stripe.SEQ] += 1  # nobody looks at it here
    change = Change(KernelCode.REPLACE, data + np.float32(1))
    assert commit_run(memory.writer, region, 0, ALL, change) == ALL
    region.table[1, Stripe.SEQ] += 1

from __future__ import annotations

import numpy as np
import pytest

from smbox.memory import accel
from smbox.memory.accel import Engine
from smbox.memory.change import Change, Receipt
from smbox.memory.commit import commit
from smbox.memory.item_run import commit_items
from smbox.memory.kernels import KernelCode
from smbox.memory.layout import STRIPE_NBYTES, Stripe
from smbox.memory.mapped import Piece

pytest.importorskip("numba", reason="without it there are no runs")
COUNT = 3 * STRIPE_NBYTES // 8


@pytest.fixture(autouse=True)
def loaded(monkeypatch, engine: Engine) -> None:
    monkeypatch.setattr(accel, "loaded", lambda: engine)


@pytest.fixture
def receipt(memory) -> Receipt:
    return Receipt(memory.channels.claim(1, 0), 1)


def some(dtype: type, count: int = COUNT) -> np.ndarray:
    numbers = np.random.default_rng(count).standard_normal(count) * 100
    return numbers > 0 if dtype is np.bool_ else numbers.astype(dtype)


def ordered(address: int, *items: tuple[int, int, float], itemsize: int = 8) -> np.ndarray:
    """Orders of (first element, elements, scale) in the region at an address."""
    orders = np.empty((len(items), 4), np.uint64)
    for row, (first, count, scale) in zip(orders, items, strict=True):
        nbytes = count * itemsize
        row[:3] = nbytes << 32 | 0x2_0112, address + first * itemsize, nbytes
        row[3:] = np.array([scale], type(scale) if scale < 2**63 else np.uint64).view(np.uint64)
    return orders


CASES = [
    (KernelCode.REPLACE, np.float64, 1),
    (KernelCode.REPLACE, np.bool_, 1),
    (KernelCode.SUM, np.float32, 0.5),
    (KernelCode.SUM, np.float64, -0.1),
    (KernelCode.SUM, np.int64, -3),
    (KernelCode.SUM, np.uint64, 2**64 - 5),
]


@pytest.mark.parametrize(("kernel", "dtype", "scale"), CASES)
def test_items_leave_what_single_commits_leave(memory, make, receipt, kernel, dtype, scale):
    data = some(dtype)
    fast, slow = make(data, "fast"), make(data, "slow")
    per_stripe = STRIPE_NBYTES // data.itemsize
    scale = scale if dtype in {np.int64, np.uint64} else float(scale)
    items = [(0, 5, scale), (2, 9, scale), (data.size - 3, 3, scale)]
    items.append((min(per_stripe, COUNT) - 4, 4, scale))
    orders = ordered(fast.address, *items, itemsize=data.itemsize)
    source = np.frombuffer(b"abc" + some(dtype, 21).tobytes(), np.uint8)
    assert commit_items(memory.writer, fast, kernel, orders, 3, source, receipt) == len(items)
    assert receipt.row.applied == len(items)
    row, ahead = memory.channels.claim(2, 0), 3
    for number, (first, count, _) in enumerate(items, 1):
        begin, nbytes = first * data.itemsize, count * data.itemsize
        piece = Piece(begin // STRIPE_NBYTES, begin, begin + nbytes)
        change = Change(kernel, source[ahead : ahead + nbytes], scale)
        commit(memory.writer, slow, piece, change, Receipt(row, number))
        ahead += nbytes
    assert fast.array().tobytes() == slow.array().tobytes() != data.tobytes()
    words = [Stripe.SEQ, Stripe.COUNT]
    assert fast.table[:, words].tolist() == slow.table[:, words].tolist()


def test_what_is_not_compiled_is_left_alone(memory, make, receipt, monkeypatch):
    region = make(np.zeros(8, np.float16))
    run = (
        KernelCode.SUM,
        ordered(region.address, (0, 1, 1.0)),
        0,
        np.ones(8, np.uint8),
        receipt,
    )
    assert commit_items(memory.writer, region, *run) == 0
    monkeypatch.setattr(accel, "loaded", lambda: None)
    assert commit_items(memory.writer, make(np.zeros(8), "other"), *run) == 0


def test_all_or_nothing_where_that_is_asked_for(memory, make, receipt):
    region = make(np.zeros(8))
    source = np.ones(4).view(np.uint8)
    three = ordered(region.address, *[(at, 1, 1.0) for at in range(3)])
    run = (memory.writer, region, KernelCode.SUM, three)
    assert commit_items(*run, 0, source, receipt, needs_all=True) == 0
    assert receipt.row.applied == 0
    assert commit_items(*run, 8, source, receipt, needs_all=True) == 3
    three[1, 1] += 4
    rest = Receipt(receipt.row, 4)
    assert commit_items(*run, 8, source, rest, needs_all=True) == 0
    assert commit_items(*run, 8, source, rest) == 1

from __future__ import annotations

import numpy as np
import pytest

from smbox.errors import ConfigError
from smbox.memory import accel
from smbox.memory.accel import Engine
from smbox.memory.change import Change, Receipt
from smbox.memory.commit import commit
from smbox.memory.item_run import Place, commit_items
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


def placed(*items: tuple[int, int, float], itemsize: int = 8) -> list[Place]:
    """Places of (first element, elements, scale) whose operands follow one another."""
    places, ahead = [], 3  # an odd byte: operands lie in a frame behind headers and each other
    for first, count, scale in items:
        begin, nbytes = first * itemsize, count * itemsize
        places.append(Place(begin, begin + nbytes, ahead, scale))
        ahead += nbytes
    return places


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
    places = placed(
        (0, 5, scale), (2, 9, 1), (data.size - 3, 3, scale), (min(per_stripe, COUNT) - 4, 4, 1),
        itemsize=data.itemsize,
    )  # fmt: skip
    source = np.frombuffer(b"abc" + some(dtype, 21).tobytes(), np.uint8)
    assert commit_items(memory.writer, fast, kernel, places, source, receipt) == len(places)
    assert receipt.row.applied == len(places)
    row = memory.channels.claim(2, 0)
    for number, place in enumerate(places, 1):
        piece = Piece(place.first // STRIPE_NBYTES, place.first, place.limit)
        own = source[place.ahead : place.ahead + place.limit - place.first]
        commit(
            memory.writer, slow, piece, Change(kernel, own, place.scale), Receipt(row, number)
        )
    assert fast.array().tobytes() == slow.array().tobytes() != data.tobytes()
    words = [Stripe.SEQ, Stripe.COUNT]
    assert fast.table[:, words].tolist() == slow.table[:, words].tolist()


def test_what_is_not_compiled_is_left_alone(memory, make, receipt, monkeypatch):
    region = make(np.zeros(8, np.float16))
    run = (KernelCode.SUM, [Place(0, 8, 0, 1.0)], np.ones(8, np.uint8), receipt)
    assert commit_items(memory.writer, region, *run) == 0
    monkeypatch.setattr(accel, "loaded", lambda: None)
    assert commit_items(memory.writer, make(np.zeros(8), "other"), *run) == 0


def test_a_scale_that_does_not_fit_changes_nothing(memory, make, receipt):
    region = make(np.zeros(8, np.int64))
    places = [Place(0, 8, 0, 1), Place(0, 8, 0, 0.5)]
    with pytest.raises(ConfigError):
        commit_items(
            memory.writer, region, KernelCode.SUM, places, np.ones(8, np.uint8), receipt
        )
    assert not region.array().any()

from __future__ import annotations

import numpy as np
import pytest

from smbox.errors import ConfigError
from smbox.memory import accel
from smbox.memory.accel import Engine
from smbox.memory.change import Change, Receipt
from smbox.memory.channels import RingFile
from smbox.memory.commit import commit, commits
from smbox.memory.journal import Writer
from smbox.memory.kernels import KernelCode, elastic_delta
from smbox.memory.layout import (
    STRIPE_NBYTES,
    Consistency,
    RegionHeader,
    RegionState,
    Slot,
    SlotState,
    Stripe,
)
from smbox.memory.locks import LockFile
from smbox.memory.mapped import pieces
from smbox.memory.segment import unlink
from smbox.memory.stripe_run import commit_run

pytest.importorskip("numba", reason="without it there are no runs")
COUNT = 2 * STRIPE_NBYTES // 4 + 1002  # float32: two stripes and a piece of a third
ALL = 4 * COUNT
FIRST, LIMIT = 8 * 501, ALL - 24


@pytest.fixture(autouse=True)
def loaded(monkeypatch, engine: Engine) -> None:
    monkeypatch.setattr(accel, "prepare", lambda _nbytes: engine)


def floats(count: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(count).astype(np.float32)


def numbers(dtype: type, nbytes: int, seed: int) -> np.ndarray:
    found = 100 * floats(nbytes // np.dtype(dtype).itemsize, seed)
    if dtype is np.bool_:
        return found > 0
    return found.astype(dtype if dtype in {np.float32, np.float64} else np.int64).astype(dtype)


@pytest.fixture
def region(make):
    return make(floats(COUNT, 1))


CHANGES = {
    "replace": (KernelCode.REPLACE, np.float32, 1),
    "replace bool": (KernelCode.REPLACE, np.bool_, 1),
    "sum": (KernelCode.SUM, np.float32, -0.3),
    "sum float64": (KernelCode.SUM, np.float64, 0.1),
    "sum int64": (KernelCode.SUM, np.int64, -7),
    "sum uint64": (KernelCode.SUM, np.uint64, 2**64 - 3),
    "elastic": (KernelCode.ELASTIC, np.float32, 0.3),
    "elastic float64": (KernelCode.ELASTIC, np.float64, 0.3),
}


@pytest.mark.parametrize("case", CHANGES)
def test_a_run_leaves_what_commits_stripe_by_stripe_leave(memory, make, case: str):
    kernel, dtype, scale = CHANGES[case]
    data = numbers(dtype, ALL, 1)
    source = numbers(dtype, LIMIT - FIRST, 2)
    fast, slow = make(data, "fast"), make(data, "slow")
    assert commit_run(memory.writer, fast, FIRST, LIMIT, Change(kernel, source, scale)) == LIMIT
    assert commits(memory.writer) == 3
    fast_slot = memory.writer.words[Slot.STATE : Slot.KERNEL + 1].copy()
    for piece in pieces(FIRST, LIMIT):
        own = source.view(np.uint8)[piece.first - FIRST : piece.limit - FIRST]
        commit(memory.writer, slow, piece, Change(kernel, own, scale))
    assert fast.array().tobytes() == slow.array().tobytes() != data.tobytes()
    others = [Stripe.SEQ, Stripe.COUNT, Stripe.WRITER]
    assert fast.table[:, others].tolist() == slow.table[:, others].tolist()
    slot = memory.writer.words[Slot.STATE : Slot.KERNEL + 1].copy()
    assert fast_slot[0] == 3 << SlotState.BITS
    assert slot[0] == 6 << SlotState.BITS
    assert fast_slot[1] == fast.address
    assert fast_slot[2:].tolist() == slot[2:].tolist()


@pytest.mark.parametrize("answers", [False, True])
def test_a_run_with_a_receipt_is_known_again_as_commits_are(memory, make, answers: bool):
    before, change = floats(COUNT, 1), Change(KernelCode.SUM, np.ones(COUNT, np.float32))
    fast, slow = make(before, "fast"), make(before, "slow")
    found = []
    for client, region in enumerate((fast, slow)):
        row = memory.channels.claim(client + 1, 1)
        ring = RingFile.open(memory.name, row.index) if answers else None
        if region is fast:
            receipt = Receipt(row, 31, ring)
            assert commit_run(memory.writer, fast, 0, ALL, change, receipt=receipt) == ALL
        else:
            for number, piece in enumerate(pieces(0, ALL), 31):
                own = change.source[piece.first // 4 : piece.limit // 4]
                receipt = Receipt(row, number, ring)
                commit(memory.writer, slow, piece, Change(KernelCode.SUM, own), receipt)
        slot = memory.writer.words[Slot.REGION : Slot.KERNEL + 1].tolist()
        slot[Slot.ROW - Slot.REGION] -= row.index
        slot[0] -= region.address
        answer = [] if ring is None else [bytes(ring.answers(n)) for n in (31, 32, 33)]
        found.append((row.applied, slot, answer, region.array().tobytes()))
        if ring is not None:
            ring.close()
    assert found[0] == found[1]
    assert found[0][0] == 33
    assert not answers or b"".join(found[0][2]) == before.tobytes()


def test_a_receipt_leaves_a_region_without_locks_to_others(memory, make):
    region = make(floats(COUNT, 1), consistency=Consistency.NONE)
    receipt = Receipt(memory.channels.claim(1, 1), 1)
    change = Change(KernelCode.SUM, ONES)
    assert commit_run(memory.writer, region, 0, ALL, change, receipt=receipt) == 0
    assert region.version() == 0


def test_the_old_bytes_come_back(memory, region):
    before, answer = region.array().copy(), np.zeros(COUNT, np.float32)
    change = Change(KernelCode.SUM, np.ones(COUNT, np.float32))
    assert commit_run(memory.writer, region, 0, ALL, change, answer=answer) == ALL
    assert answer.tobytes() == before.tobytes()
    assert region.array().tobytes() == (before + np.float32(1)).tobytes()


def test_an_elastic_exchange_moves_the_worker_by_the_same_bits(memory, region):
    center, x = region.array().copy(), floats(COUNT, 2)
    moved, delta = x.copy(), elastic_delta(x, center, np.float32(0.3))
    change = Change(KernelCode.ELASTIC, moved, 0.3)
    assert commit_run(memory.writer, region, 0, ALL, change, moved=moved) == ALL
    assert region.array().tobytes() == (center + delta).tobytes()
    assert moved.tobytes() == (x - delta).tobytes()


def test_an_elastic_exchange_can_return_its_delta(memory, region):
    center, x = region.array().copy(), floats(COUNT, 2)
    before, delta = x.copy(), np.zeros(COUNT, np.float32)
    change = Change(KernelCode.ELASTIC, x, 0.3)
    assert commit_run(memory.writer, region, 0, ALL, change, delta=delta) == ALL
    assert delta.tobytes() == elastic_delta(x, center, np.float32(0.3)).tobytes()
    assert x.tobytes() == before.tobytes()


def run_into(memory, region) -> int:
    """Put ones over the whole region and hand the old bytes back, as far as it goes."""
    change = Change(KernelCode.REPLACE, np.ones(COUNT, np.float32))
    before, answer = region.array().copy(), np.zeros(COUNT, np.float32)
    reached = commit_run(memory.writer, region, 0, ALL, change, answer=answer)
    done = reached // 4
    assert region.array()[:done].tolist() == [1] * done
    assert answer[:done].tobytes() == before[:done].tobytes()
    assert region.array()[done:].tobytes() == before[done:].tobytes()
    assert not answer[done:].any()
    assert region.version() == commits(memory.writer) == -(-reached // STRIPE_NBYTES)
    return reached


def assert_unlocked(memory, region) -> None:
    held = [memory.superblock.locks.is_held(region.lock_byte(s)) for s in range(3)]
    assert held == [False] * 3


@pytest.mark.parametrize("stripe", [0, 1, 2])
def test_a_held_lock_stops_it(memory, region, stripe: int):
    other = LockFile(memory.name)
    other.try_lock(region.lock_byte(stripe))
    assert run_into(memory, region) == stripe * STRIPE_NBYTES
    other.close()
    assert_unlocked(memory, region)


@pytest.mark.parametrize("stripe", [0, 1, 2])
def test_an_open_commit_of_a_dead_writer_stops_it(memory, region, stripe: int):
    region.table[stripe, Stripe.SEQ] += 1
    assert run_into(memory, region) == stripe * STRIPE_NBYTES
    assert_unlocked(memory, region)
    region.table[stripe, Stripe.SEQ] += 1


def test_a_freed_region_stops_it(memory, region):
    region.header[RegionHeader.STATE] = RegionState.FREED
    assert run_into(memory, region) == 0
    assert_unlocked(memory, region)


def test_a_region_without_locks_is_changed_too(memory, make):
    assert run_into(memory, make(floats(COUNT, 1), consistency=Consistency.NONE)) == ALL


def test_a_slot_that_is_open_stops_it(memory, region):
    memory.writer.words[Slot.STATE] += SlotState.ARMED
    assert run_into(memory, region) == 0
    memory.writer.words[Slot.STATE] -= SlotState.ARMED


def test_a_closed_region_stops_it(memory, make):
    region = make(floats(COUNT, 1))
    change = Change(KernelCode.REPLACE, np.ones(COUNT, np.float32))
    memory.regions.pop(region.address)
    region.close()
    assert commit_run(memory.writer, region, 0, ALL, change) == 0


def test_a_writer_left_to_its_parent_stops_it(memory, region):
    writer = Writer.create(memory.name)
    slot = writer.segment.name
    writer.abandon()
    change = Change(KernelCode.REPLACE, np.ones(COUNT, np.float32))
    assert commit_run(writer, region, 0, ALL, change) == 0
    unlink(slot)


@pytest.mark.parametrize(
    ("first", "limit", "kernel", "elements"),
    [
        (0, 4, KernelCode.MAX, 1),  # not compiled
        (0, ALL + 4, KernelCode.SUM, COUNT + 1),  # beyond the end
        (-4, 4, KernelCode.SUM, 2),
        (2, 6, KernelCode.SUM, 1),  # in the middle of an element
        (0, 8, KernelCode.SUM, 1),  # a source that is too short
        (8, 8, KernelCode.SUM, 0),
        (8, 4, KernelCode.SUM, 0),
    ],
)
def test_what_it_cannot_do_is_left_alone(memory, region, first, limit, kernel, elements):
    before = region.array().copy()
    change = Change(kernel, np.ones(elements, np.float32))
    assert commit_run(memory.writer, region, first, limit, change) == first
    assert region.array().tobytes() == before.tobytes()
    assert region.version() == 0


def test_without_the_engine_nothing_is_done(memory, region, monkeypatch):
    for engine in (None, Engine(lambda: None, None, None)):
        monkeypatch.setattr(accel, "prepare", lambda _nbytes, engine=engine: engine)
        assert run_into(memory, region) == 0


ONES = np.ones(COUNT, np.float32)
FROZEN = np.ones(COUNT, np.float32)
FROZEN.flags.writeable = False


@pytest.mark.parametrize(
    ("change", "back"),
    [
        (Change(KernelCode.SUM, ONES, float("nan")), {}),
        (Change(KernelCode.SUM, np.ones(2 * COUNT, np.float32)[::2]), {}),
        (Change(KernelCode.SUM, ONES), {"moved": ONES}),
        (Change(KernelCode.ELASTIC, ONES), {"moved": ONES, "answer": ONES}),
        (Change(KernelCode.ELASTIC, ONES), {"moved": ONES[1:]}),
        (Change(KernelCode.ELASTIC, ONES), {"delta": FROZEN}),
        (Change(KernelCode.SUM, ONES), {"answer": np.ones((COUNT, 2), np.float32)[:, 0]}),
    ],
)
def test_arrays_that_do_not_fit_are_refused(memory, region, change, back):
    with pytest.raises(ConfigError):
        commit_run(memory.writer, region, 0, ALL, change, **back)
    assert region.version() == 0


def test_a_source_may_be_read_only(memory, region):
    assert commit_run(memory.writer, region, 0, ALL, Change(KernelCode.SUM, FROZEN)) == ALL

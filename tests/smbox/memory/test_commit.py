from __future__ import annotations

import itertools

import numpy as np
import pytest

from smbox.errors import LayoutMismatchError, RegionFreedError
from smbox.memory import commit as commits, orders
from smbox.memory.channels import Answers
from smbox.memory.commit import StripeBusy
from smbox.memory.journal import slot_words
from smbox.memory.kernels import ONE, KernelCode, OptimizerCode
from smbox.memory.layout import (
    STRIPE_NBYTES,
    Channel,
    Consistency,
    RegionHeader,
    RegionState,
    Slot,
    SlotState,
    Stripe,
)
from smbox.memory.orders import Block, Output, Result
from smbox.testing.kernels import stepped
from smbox.testing.regions import commit, done_of

SUM = KernelCode.SUM
COUNT = STRIPE_NBYTES // 4 + 5


def twos(count: int) -> np.ndarray:
    return np.full(count, 2, np.float32).view(np.uint8)


@pytest.fixture
def region(make):
    return make(np.arange(COUNT, dtype=np.float32))


def test_a_change_hands_back_what_was_there(memory, region):
    old = np.zeros(2, np.float32)
    commit(memory.writer, (region,), SUM, 4, 12, twos(2), 3.0, output=Output.OLD, output_to=old)
    assert old.tolist() == [1, 2]
    assert region.array()[:5].tolist() == [0, 7, 8, 3, 4]
    assert region.version() == 1
    assert done_of(memory.writer) == 12
    assert int(slot_words(memory.writer.segment)[Slot.STATE]) & SlotState.MASK == SlotState.FREE


def test_a_range_over_two_stripes_is_a_commit_of_each(memory, region):
    commit(memory.writer, (region,), SUM, 0, region.nbytes, twos(COUNT), 0.5)
    assert np.array_equal(region.array(), np.arange(1, COUNT + 1, dtype=np.float32))
    assert (region.table[:, Stripe.SEQUENCE] >> 16).tolist() == [1, 1]


def test_numbers_and_answers_are_left_in_the_channel(memory, region):
    row = memory.channels.claim(b"5" * 16, 0)
    answers = Answers(row)
    block = answers.block_for(STRIPE_NBYTES)
    before = region.data.tobytes()
    commit(
        memory.writer,
        (region,),
        SUM,
        0,
        region.nbytes,
        twos(COUNT),
        1.0,
        output=Output.OLD,
        channel=block,
        number=1,
    )
    plain = row.block()
    commit(memory.writer, (region,), SUM, 0, 4, twos(1), 1.0, channel=plain, number=3)
    assert row.applied == 3
    assert answers.find(1, 2).tobytes() == before
    assert answers.find(3) is None


def test_a_held_stripe_is_busy_and_the_call_goes_on_behind_what_is_done(memory, region, other):
    region.try_lock(1, other)
    with pytest.raises(StripeBusy) as busy:
        commit(memory.writer, (region,), SUM, 0, region.nbytes, twos(COUNT), 0.5)
    assert (busy.value.region, busy.value.stripe) == (region, 1)
    assert done_of(memory.writer) == STRIPE_NBYTES
    region.unlock(1, other)
    commit(
        memory.writer,
        (region,),
        SUM,
        0,
        region.nbytes,
        twos(COUNT),
        0.5,
        at=done_of(memory.writer),
    )
    assert np.array_equal(region.array(), np.arange(1, COUNT + 1, dtype=np.float32))


def test_an_order_that_meets_a_held_stripe_lets_all_its_locks_go(memory, make, other):
    extents = [make(np.ones(4, np.float32), name) for name in "abc"]
    for wanted in itertools.permutations(extents):
        for at, blocked in enumerate(extents):  # it locks them in ascending order
            assert all(extent.try_lock(0, other) for extent in extents[at:])
            with pytest.raises(StripeBusy) as busy:
                commit(
                    memory.writer,
                    wanted,
                    OptimizerCode.ADAM,
                    0,
                    16,
                    twos(4),
                    1.0,
                    parameters=np.array([0.1, 0.9, 0.99, 1e-8]),
                )
            assert busy.value.region is blocked
            for extent in extents:
                extent.unlock(0, other)
            assert not any(extent.table[0, Stripe.HOLDER] for extent in extents)
    assert [extent.version() for extent in extents] == [0, 0, 0]


def test_an_order_that_names_a_region_twice_is_refused(memory, make):
    """It would wait for its own lock for ever."""
    region = make(np.ones(4, np.float32))
    parameters = np.array([0.1, 0.9, 0.0, 0.0])
    with pytest.raises(LayoutMismatchError, match="fit"):
        commit(
            memory.writer,
            (region, region),
            OptimizerCode.MOMENTUM,
            0,
            16,
            twos(4),
            1.0,
            parameters=parameters,
        )
    assert region.version() == 0


def test_an_optimizer_steps_parameters_and_state_together(memory, make):
    arrays = [np.arange(COUNT, dtype=np.float32), *np.zeros((2, COUNT), np.float32)]
    regions = tuple(make(array, name) for array, name in zip(arrays, "pmv", strict=True))
    by, g = (0.1, 0.9, 0.99, 1e-8), np.linspace(-1, 1, COUNT, dtype=np.float32)
    for step in (1, 2):
        commit(
            memory.writer,
            regions,
            OptimizerCode.ADAM,
            0,
            regions[0].nbytes,
            g.view(np.uint8),
            1.0,
            parameters=np.array(by),
        )
        arrays = stepped(OptimizerCode.ADAM, arrays[0], arrays[1:], g, by, step)
    for region, array in zip(regions, arrays, strict=True):
        assert np.array_equal(region.array(), array)
        assert region.version() == 4


def test_a_freed_region_is_told_and_its_stripe_unlocked(memory, region):
    region.state = RegionState.FREED
    with pytest.raises(RegionFreedError):
        commit(memory.writer, (region,), SUM, 0, 8, twos(2), 1.0)
    assert not region.table[0, Stripe.HOLDER]
    assert region.version() == 0


@pytest.mark.parametrize(
    ("kernel", "source"), [(SUM, twos(3)), (KernelCode.ARRIVE, twos(2)), (11, twos(2))]
)
def test_an_impossible_change_is_refused(memory, region, kernel, source):
    with pytest.raises(LayoutMismatchError, match="fit"):
        commit(memory.writer, (region,), kernel, 0, 8, source, 1.0)
    assert region.version() == 0
    assert not region.table[0, Stripe.HOLDER]


def test_orders_of_one_call_stop_at_the_first_that_is_held(memory, make, other):
    regions = [make(np.zeros(2, np.float32), name) for name in "abc"]
    block, source = Block(3 * orders.ORDER_NBYTES), twos(2)
    for place, region in enumerate(regions):
        words = [SUM, region.dtype_code, 0, region.extents, 0, 8]
        words += [orders.address_of(source), source.nbytes, ONE["float"], 0, 0, 0, 0, 0]
        orders.write_order(block.bytes, place * orders.ORDER_NBYTES, *words)
    regions[1].try_lock(0, other)
    each = [(region,) for region in regions]
    with pytest.raises(StripeBusy):
        commits.run_orders(memory.writer, block, each, 24)
    done, result, met, stripe = orders.order_outcome(block, 1)
    assert (done, result, met, stripe) == (0, Result.BUSY, regions[1].block.address, 0)
    regions[1].unlock(0, other)
    commits.run_orders(memory.writer, block, each[1:], 24, begin=1)
    assert [region.array().tolist() for region in regions] == [[2, 2]] * 3


def test_without_locks_only_versions_are_kept(memory, make, other):
    region = make(np.zeros(COUNT, np.float32), consistency=Consistency.NONE)
    region.try_lock(0, other)
    row = memory.channels.claim(b"5" * 16, 0)
    channel = row.block()
    writer, whole = memory.writer, (0, region.nbytes, twos(COUNT))
    commit(writer, (region,), SUM, *whole, 1.0, channel=channel, number=1)
    assert (region.array() == 2).all()
    assert (region.version(), row.applied) == (2, 2)
    assert not int(slot_words(writer.segment)[Slot.STATE])
    region.state = RegionState.FREED
    with pytest.raises(RegionFreedError):
        commit(writer, (region,), SUM, *whole, 1.0)
    assert (region.array() == 2).all()


def test_without_locks_a_region_that_is_freed_meanwhile_is_told(memory, make):
    region = make(np.zeros(16, np.uint64), consistency=Consistency.NONE)
    state, data = RegionHeader.STATE, 2
    region.block.words[data] = orders.address_of(region.words)  # its own stores free it
    freed = region.words[:16].copy()
    freed[state] = RegionState.FREED
    with pytest.raises(RegionFreedError):
        commit(memory.writer, (region,), KernelCode.REPLACE, 0, 128, freed.view(np.uint8))
    assert region.words[state] == RegionState.FREED


def test_without_locks_a_number_is_applied_after_its_stores(memory, make):
    row = memory.channels.claim(b"5" * 16, 0)
    region = make(np.zeros(8, np.uint64), consistency=Consistency.NONE)
    region.block.words[2] = orders.address_of(row.words)  # its data is the channel's row
    stored = row.words.copy()
    stored[Channel.APPLIED] = 7
    source = stored.view(np.uint8)
    commit(
        memory.writer,
        (region,),
        KernelCode.REPLACE,
        0,
        64,
        source,
        channel=row.block(),
        number=1,
    )
    assert row.applied == 1


def test_narrow_operands_widen(memory, region):
    x = np.arange(4, dtype=np.float16).view(np.uint8)
    commit(memory.writer, (region,), SUM, 0, 16, x, 1.0, operand=10)
    assert region.array()[:5].tolist() == [0, 2, 4, 6, 4]

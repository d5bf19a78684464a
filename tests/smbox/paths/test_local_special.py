from __future__ import annotations

import numpy as np
import pytest

from smbox.errors import RegionFreedError, RequestTimeoutError
from smbox.memory.layout import STRIPE_NBYTES, Stripe

STRIPE = STRIPE_NBYTES // 4
COUNT = 2 * STRIPE + 3
ONES = np.ones(COUNT, np.float32)


@pytest.fixture
def region(box):
    return box.create("r", shape=COUNT)


@pytest.fixture
def mapped(solo):
    return lambda region: solo.control.memory.regions[int(region.info.address)]


def test_a_change_from_a_region_goes_on_where_a_held_stripe_stopped_it(box, region, held):
    source = box.create("source", init=ONES)
    with held(region, 1), pytest.raises(RequestTimeoutError) as error:
        region.accumulate_from(source, timeout_s=0.01)
    assert error.value.facts["ranges_done"] == [(0, STRIPE_NBYTES)]
    assert error.value.handle.outcome() == "partial"
    assert (region.get()[: STRIPE_NBYTES // 8] == 1).all()


def test_rows_wait_for_a_commit_in_the_making(box, region, held, mapped):
    with held(region, 1):
        mapped(region).table[1, Stripe.SEQ] += 1
        handle = region.rows([0, STRIPE]).get_nb()
        assert not handle.done()
        mapped(region).table[1, Stripe.SEQ] += 1
    assert handle.result().tolist() == [0, 0]


def test_what_cannot_be_mapped_fails_when_its_turn_comes(box, region):
    gone = box.create("gone", init=ONES)
    box.free(gone)
    handle = region.accumulate_from_nb(gone)
    with pytest.raises(RegionFreedError):
        handle.wait()
    assert region.get().sum() == 0

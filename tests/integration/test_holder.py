"""Tests that a timeout over tcp names the process that holds the stripe."""

from __future__ import annotations

import os

import numpy as np
import pytest

import smbox
from smbox.address import OFFSET_MAX
from smbox.memory.journal import Writer
from smbox.memory.layout import Stripe
from smbox.memory.mapped import MappedRegion


@pytest.fixture
def box():
    with (
        smbox.local(memory="64MiB") as near,
        smbox.connect(near.address, transport="tcp", timeout_s=30.0) as far,
    ):
        yield far


@pytest.fixture
def region(box):
    return box.create("w", shape=(8,), dtype="int64")


@pytest.fixture
def held(box, region):
    """Lock the region's stripe, as a writer does that was stopped in a commit."""
    name = box.stats()["name"]
    mapped = MappedRegion.attach(name, int(region.address) & OFFSET_MAX)
    writer = Writer.create(name)
    row = mapped.table[0]
    assert mapped.try_lock(0, writer.locks)
    row[Stripe.WRITER] = writer.slot_id
    row[Stripe.SEQUENCE] += Stripe.OPEN

    def let_go():
        row[Stripe.SEQUENCE] -= Stripe.OPEN
        mapped.unlock(0, writer.locks)

    yield let_go
    writer.close()


def test_a_timeout_over_tcp_names_the_holder(region, held):
    handle = region.accumulate_nb(np.ones(8, np.int64))
    with pytest.raises(smbox.RequestTimeoutError) as caught:
        handle.wait(timeout_s=0.5)
    facts = caught.value.facts
    assert (facts["region"], facts["stripe"], facts["holder_pid"]) == ("w", 0, os.getpid())
    held()
    handle.wait(timeout_s=30.0)
    assert region.get().tolist() == [1] * 8

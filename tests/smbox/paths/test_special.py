from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from smbox.memory.kernels import OptimizerCode
from smbox.paths.special import Lease, OptimizerStep


@pytest.fixture
def info(client):
    return client.create(4)


def test_a_lease_ends_once(info):
    ends = []
    lease = Lease(info, lambda region, is_sound: ends.append((region, is_sound)))
    lease.give()
    lease.drop()
    assert ends == [(info, True)]


def test_a_lease_knows_its_addresses(info):
    lease = Lease(info, lambda *_: None)
    begin = int(info.address)
    assert [lease.holds(begin + at) for at in (-1, 0, 15, 16)] == [False, True, True, False]
    assert not lease.holds(None)


def test_a_step_does_not_change(info):
    step = OptimizerStep(OptimizerCode.MOMENTUM, (info,), (0.1, 0.9), np.zeros(4, np.float32))
    with pytest.raises(dataclasses.FrozenInstanceError):
        step.parameters = ()

"""A memory in this process, a box on it, and somebody who holds a stripe of it."""

from __future__ import annotations

import contextlib

import pytest

from smbox.memory.locks import LockFile
from smbox.testing.solo import solo_box, solo_boxes


@pytest.fixture
def solo():
    """Open boxes on a memory that this process owns: ``solo_box(solo)``."""
    with solo_boxes() as opener:
        yield opener


@pytest.fixture
def box(solo):
    with solo_box(solo) as box:
        yield box


@pytest.fixture
def held(solo):
    """Hold a stripe of a region, as a stopped writer would: ``with held(region, 1): ...``."""

    @contextlib.contextmanager
    def hold(region, stripe=0):
        mapped = solo.control.memory.regions[int(region.info.address)]
        locks = LockFile(solo.control.memory.name)
        assert locks.try_lock(mapped.lock_byte(stripe))
        try:
            yield
        finally:
            locks.close()

    return hold

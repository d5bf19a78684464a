"""Lock files that are lent."""

from __future__ import annotations

import pytest

from memnode.holding import IDLE_MAX, LockFiles


@pytest.fixture
def files(bench):
    made = LockFiles(bench.name)
    yield made
    made.close()


def test_few_idle_files_are_kept(files):
    lent = [files.take() for _ in range(IDLE_MAX + 2)]
    assert len(set(lent)) == len(lent)
    for locks in lent:
        files.give(locks)
    again = [files.take() for _ in range(IDLE_MAX + 1)]
    assert set(again[:IDLE_MAX]) < set(lent)
    assert again[-1] not in lent
    for locks in again:
        locks.close()

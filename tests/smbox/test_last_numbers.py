"""The last generation of a place, the last rank of a run, and the last end of a member."""

from __future__ import annotations

import numpy as np
import pytest

from smbox.errors import ConfigError, LimitError
from smbox.lease import EXPIRED, LEFT, NUMBER_BITS
from smbox.meeting import ENDS

GENERATION_MAX = (1 << 23) - 1
LEASE_MS = 600_000


def write(box, name, rank, generation, *numbers):
    words = [generation << NUMBER_BITS | number for number in (*numbers, LEASE_MS)]
    box.attach(name)[rank : rank + 1].put(np.array([words]))


@pytest.mark.parametrize("mark", [LEFT, EXPIRED])
def test_a_lock_with_the_last_fence_cannot_be_acquired_again(box, mark):
    lock = box.lock("door", timeout_s=0.0)
    write(box, "door.lock.members", 0, GENERATION_MAX - 1, mark, 0, 0)
    with lock:
        assert lock.fence == GENERATION_MAX
    write(box, "door.lock.members", 0, GENERATION_MAX, mark, 0, 0)
    before = box.attach("door.lock.members").get()
    with pytest.raises(LimitError, match="another name"):
        lock.acquire()
    assert box.attach("door.lock.members").get().tolist() == before.tolist()
    assert not lock.is_held


def test_a_member_that_has_finished_127_times_cannot_arrive_at_an_end(box, join):
    join(box).leave()
    write(box, "run.members", 1, 1, 2, 0, 2 * 127 * ENDS)
    member = join(box)
    with pytest.raises(ConfigError):
        member.finish(timeout_s=0.1)
    assert member.met == 127 * ENDS
    write(box, "run.members", 1, 1, LEFT, 0, 2 * 127 * ENDS)
    member.meet(timeout_s=60.0)


def test_nobody_joins_a_run_in_which_all_ranks_are_taken(box, join):
    join(box).leave()
    place = [1 << NUMBER_BITS | number for number in (0, 0, 0, LEASE_MS)]
    box.attach("run.members").put(np.array([place] * 1024))
    with pytest.raises(LimitError, match="at most 1024 members"):
        join(box)

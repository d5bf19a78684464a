"""Tests of one box in many threads and forked children, and of many boxes on one name."""

from __future__ import annotations

import os
import threading

import numpy as np
import pytest

import smbox
from smbox.memory.layout import STRIPE_NBYTES
from smbox.memory.locks import LockFile
from smbox.memory.mapped import MappedRegion

pytestmark = pytest.mark.shares

COUNT = 3 * STRIPE_NBYTES // 16
TRANSPORTS = pytest.mark.parametrize("transport", ["shm", "tcp"])


def in_threads(work, count):
    """Run ``work(index)`` in threads; return the errors."""
    errors = []

    def guarded(index):
        try:
            work(index)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(index,)) for index in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return errors


@TRANSPORTS
def test_threads_of_one_box(place, transport):
    box = place.box(transport)
    region, counter = box.create("sum", COUNT, "int64"), box.counter("steps")
    ones = np.ones(COUNT, np.int64)
    seen = [[], []]

    def work(index):
        for _ in range(20):
            region.accumulate(ones)
            seen[index].append(region[:1].fetch_and_op(ones[:1])[0])
            counter.add(1)

    assert in_threads(work, 2) == []
    assert (region[1:].get() == 40).all()
    assert region[:1].get()[0] == 80
    assert counter.value == 40
    assert len({*seen[0], *seen[1]}) == 40, "two saw the same old value"


@TRANSPORTS
def test_a_child_forked_with_a_request_under_way(place, transport):
    """The parent completes its request; the child connects anew, as in a DataLoader."""
    box = place.box(transport)
    region = box.create("sum", COUNT, "int64")
    ones = np.ones(COUNT, np.int64)
    mapped = MappedRegion.attach(place.name, int(region.info.address))
    locks = LockFile(place.name)
    assert mapped.try_lock(1, locks)
    handle = region.accumulate_nb(ones)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            region[: STRIPE_NBYTES // 8].accumulate(ones[: STRIPE_NBYTES // 8])
            box.close()
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    assert not handle.done()
    locks.close()
    handle.wait()
    region.accumulate(ones)
    first = STRIPE_NBYTES // 8
    assert (region[:first].get() == 3).all()
    assert (region[first:].get() == 2).all()


def test_a_region_freed_while_others_write(place):
    boxes = [place.box("shm"), place.box("tcp"), place.box("shm"), place.box("tcp")]
    name = "busy"
    region = boxes[0].create(name, COUNT, "int64")
    attached = [box.attach(name) for box in boxes]
    ones = np.ones(COUNT, np.int64)
    freed = []

    def work(index):
        while True:
            try:
                attached[index].accumulate(ones)
            except smbox.RegionFreedError:
                freed.append(index)
                return

    def free(index):
        if index < 4:
            work(index)
        else:
            region.wait(version=40)
            boxes[1].free(name)

    assert in_threads(free, 5) == []
    assert sorted(freed) == [0, 1, 2, 3]
    with pytest.raises(smbox.RegionFreedError):
        region.get()
    again = boxes[3].create(name, COUNT, "int64")
    assert again.address > region.address
    assert not again.get().any()


CREATES = """
import smbox.paths.creating
mine = int(sys.argv[3])
print("ready", flush=True)
sys.stdin.readline()
try:
    values = np.full(200_000, mine, "int64")
    made = box.create("race", init=values, exist_ok=sys.argv[4] == "ok")
    print("has", made.get()[0])
except smbox.RegionExistsError:
    print("exists", box.attach("race").get()[0])
"""


@pytest.mark.parametrize("exist", ["ok", "error"])
def test_exactly_one_of_many_creators_wins(place, preloaded, exist):
    ways = ["shm", "tcp"] * 4
    creators = [
        place.script(CREATES, way, index, exist, python=preloaded)
        for index, way in enumerate(ways)
    ]
    for creator in creators:
        assert creator.stdout.readline() == "ready\n"
    for creator in creators:
        creator.stdin.write("go\n")
        creator.stdin.flush()
    told = [creator.communicate(timeout=60)[0].split() for creator in creators]
    contents = place.box().attach("race").get()
    assert len(np.unique(contents)) == 1
    winner = str(contents[0])
    assert {seen for _, seen in told} == {winner}
    winners = [index for index, (word, _) in enumerate(told) if word == "has"]
    assert winners == (list(range(8)) if exist == "ok" else [int(winner)])
    assert len(place.box().regions()) == 1

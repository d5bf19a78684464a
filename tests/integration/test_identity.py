"""Tests that a node that was stopped and started again has another memory."""

from __future__ import annotations

import pickle
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import pytest

import smbox
from smbox.errors import PeerLostError

pytestmark = pytest.mark.shares

ONES = np.ones(8, np.float32)

VERBS = {
    "put": lambda held: held.region.put(ONES),
    "get": lambda held: held.region.get(),
    "snapshot": lambda held: held.region.get(snapshot=True),
    "accumulate": lambda held: held.region[2:].accumulate(ONES[2:]),
    "elastic": lambda held: held.region.elastic(ONES.copy(), 0.5),
    "fetch": lambda held: held.region.fetch_and_op(ONES),
    "from": lambda held: held.region.accumulate_from(held.other),
    "rows": lambda held: held.region.rows([1]).put([1.0]),
    "wait": lambda held: held.region.wait(1000, timeout_s=1.0),
    "version": lambda held: held.region.version,
    "batch": lambda held: held.batch(),
    "step": lambda held: held.optimizer.step(ONES),
    "free": lambda held: held.box.free(held.region),
    "add": lambda held: held.counter.add(),
    "value": lambda held: held.counter.value,
    "count": lambda held: held.counter.wait(1000, timeout_s=1.0),
    "create": lambda held: held.box.create("fresh", 8),
    "attach": lambda held: held.box.attach("r", timeout_s=1.0),
}


class Held:
    """The objects of one memory that a client has."""

    def __init__(self, box):
        self.box = box
        self.region = box.create("r", 8, exist_ok=True)
        self.other = box.create("other", 8, exist_ok=True)
        self.optimizer = box.optimizer(self.region, "momentum", lr=0.1)
        self.counter = box.counter("c")
        self.region.put(ONES)

    def batch(self):
        with self.box.batch() as batch:
            batch.put(self.region, ONES)


def begin_anew(place):
    """Restart the node with a new memory; return a box on it, and its regions."""
    assert place.node.stop() is None
    place.node.start_and_wait()
    box = place.box()
    return [box.create(name, 8) for name in ("r", "other", "mine")], box.counter("c")


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_no_verb_reaches_another_memory(place, transport):
    held = Held(place.box(transport, timeout_s=10.0))
    travelled = pickle.dumps((held.box, held.region, held.counter))
    regions, counter = begin_anew(place)

    def check():
        for verb in VERBS.values():
            with pytest.raises(PeerLostError):
                verb(held)

    check()
    check()  # for good
    with ThreadPoolExecutor(1) as others:  # a thread without a channel
        others.submit(check).result()
    box, region, count = pickle.loads(travelled)
    snapshot = partial(region.get, snapshot=True)
    for verb in (lambda: region.put(ONES), region.get, snapshot, count.add):
        with pytest.raises(PeerLostError):
            verb()
    box.close()
    assert not any(each.get().any() for each in regions)
    assert [each.version for each in regions] == [0, 0, 0]
    assert counter.value == 0


def test_copies_from_either_memory_work_in_one_process(place):
    """A copy from the new memory raised PeerLostError while one from the old memory lived."""
    held = Held(place.box())
    old_box, old = pickle.loads(pickle.dumps((held.box, held.region)))
    with old_box:
        assert (old.get() == 1).all()
        begin_anew(place)
        new_box, new = pickle.loads(pickle.dumps((box := place.box(), box.attach("r"))))
        with new_box:
            assert not new.get().any()
        with pytest.raises(PeerLostError):
            old.get()


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_a_node_that_was_killed_is_the_same(place, transport):
    held = Held(place.box(transport))
    travelled = pickle.dumps((held.box, held.region))
    place.restart()
    held.region.accumulate(ONES)
    assert held.counter.add() == 0
    done = []
    thread = threading.Thread(target=lambda: done.append(held.region.get()))
    thread.start()
    thread.join()
    assert (done[0] == 2).all()
    box, region = pickle.loads(travelled)
    assert (region.get() == 2).all()
    box.close()


def test_a_raw_address_of_another_memory_means_nothing(place):
    address = Held(place.box()).region.address
    regions, _ = begin_anew(place)
    box = place.box()
    with pytest.raises(smbox.AddressRangeError):
        box.put(address, ONES)
    assert not any(each.get().any() for each in regions)

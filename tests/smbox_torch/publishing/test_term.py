"""Publications that are cut off: by an error, or because an answer is lost."""

from __future__ import annotations

import contextlib
from concurrent.futures import ThreadPoolExecutor, wait

import numpy as np
import pytest
import torch

import smbox
from smbox_torch import Publisher, Subscriber

pytestmark = pytest.mark.shares


def pulled(box, name):
    """The version that a new reader gets, and the values in all its tensors."""
    subscriber = Subscriber(box, name)
    version = subscriber.pull(timeout_s=0.0)
    return version, {v for each in subscriber.state.values() for v in each.unique().tolist()}


class Cut:
    """Cuts a publication off at a put, which reaches the memory later.

    Args:
        at_put: 0 for the version's number, then one for each tensor; None: at none.
    """

    class Error(Exception):
        pass

    def __init__(self) -> None:
        self.at_put = None
        self._late = []
        self._puts = 0

    def __call__(self, verb, region):
        if verb == "get_nb":
            return None
        self._puts += 1
        return self._cut_off(region) if self._puts - 1 == self.at_put else None

    def _cut_off(self, region):
        def put(data):
            self._late.append((region, data.clone() if torch.is_tensor(data) else data))
            raise Cut.Error

        return put

    def begin(self, at_put) -> None:
        self.at_put, self._puts = at_put, 0

    def arrive(self) -> None:
        while self._late:
            region, data = self._late.pop()
            with contextlib.suppress(smbox.RegionFreedError):
                region.put(data)


@pytest.mark.parametrize("at_put", [0, 1, 2])
def test_a_publication_that_is_cut_off_is_never_seen(box, name, hooked, at_put):
    """Not even if what it has sent arrives behind the next publication."""
    cut = Cut()
    state = {"a": torch.zeros(1 << 19), "b": torch.zeros(1 << 19)}

    publisher = Publisher(hooked(box, cut), name, state)
    assert publisher.publish() == 1
    cut.begin(at_put)
    state["a"] += 1
    state["b"] += 1
    with pytest.raises(Cut.Error):
        publisher.publish()
    assert pulled(box, name) == (1, {0.0})
    cut.begin(None)
    state["a"] += 1
    state["b"] += 1
    assert publisher.publish() == 2
    cut.arrive()
    assert pulled(box, name) == (2, {2.0})
    layouts = [i for i in box.regions() if i.name.startswith(name) and "layout" in i.name]
    assert len(layouts) == 1
    publisher.close()


def test_a_buffer_names_the_version_before_any_of_it_is_written(box, name, hooked):
    """Else a reader of the version that is overwritten could take new bytes for old ones."""
    named = []

    def note(verb, region):
        if verb == "put_nb":
            named.append(int(box.attach(region.name)[:8].get().view(np.int64)[0]))

    state = {"a": torch.zeros(1 << 19), "b": torch.zeros(1)}
    with Publisher(hooked(box, note), name, state) as publisher:
        for _ in range(3):
            publisher.publish()
    assert named == [1, 1, 2, 2, 3, 3]


def test_a_version_is_announced_when_all_of_it_is_written(box, name, hooked):
    class Put:
        def __init__(self, region, data) -> None:
            self.wait = lambda: region.put(data)

    def late(verb, region):
        return (lambda data: Put(region, data)) if verb == "put_nb" else None

    state = {"a": torch.ones(1 << 19), "b": torch.ones(1)}
    with Publisher(hooked(box, late), name, state) as publisher:
        publisher.publish()
    assert pulled(box, name) == (1, {1.0})


def test_copies_in_flight_are_of_part_of_the_model(box, name, hooked):
    """Else a publication of converted tensors would need the memory of a second model."""
    started, together = [], []

    class Put:
        def wait(self) -> None:
            if started:
                together.append(sum(started))
                started.clear()

    def slow(verb, _region):
        def put(data):
            started.append(data.numel())
            return Put()

        return put if verb == "put_nb" else None

    values = torch.arange(20.0)
    state = {f"w{n}": values[n].expand(1 << 20) for n in range(20)}  # of 4 MiB each, published
    with Publisher(hooked(box, slow), name, state) as publisher:
        publisher.publish()
    assert sum(together) == 80 << 20
    assert max(together) <= 36 << 20
    assert len(together) == 3  # several are in flight at once


def test_publications_of_two_threads_run_one_after_another(box, name, hooked):
    later = []

    def publish_at_once(verb, _region):
        if verb == "put_nb" and not later:
            later.append(pool.submit(publisher.publish))
            later.append(wait(later, timeout=0.05).done)

    with (
        ThreadPoolExecutor(1) as pool,
        Publisher(hooked(box, publish_at_once), name, {"a": torch.zeros(3)}) as publisher,
    ):
        assert publisher.publish() == 1
        assert (later[0].result(60), later[1]) == (2, set())


class LateBox:
    """A box on which a swap of the newest version times out, and is applied now or later.

    Args:
        box: the real one.
        is_late: the swap is applied just before the next one.
    """

    def __init__(self, box, *, is_late: bool) -> None:
        self._box = box
        self.is_late = is_late
        self.is_slow = False
        self._pending = []

    __class__ = smbox.Box  # smbox.join checks that it is one

    def __getattr__(self, name):
        return getattr(self._box, name)

    def counter(self, name, init=0):
        counter = self._box.counter(name, init)
        return LateCounter(self, counter) if name.endswith(".newest") else counter

    def arrive(self) -> None:
        while self._pending:
            counter, old, new = self._pending.pop()
            assert counter.compare_and_swap(old, new)

    def swap(self, counter, old, new):
        self.arrive()
        if not self.is_slow:
            return counter.compare_and_swap(old, new)
        self.is_slow = False
        if self.is_late:
            self._pending.append((counter, old, new))
        else:
            assert counter.compare_and_swap(old, new)
        raise smbox.RequestTimeoutError("no answer", outcome="unknown")


class LateCounter:
    def __init__(self, box, counter) -> None:
        self._box = box
        self._counter = counter

    @property
    def value(self):
        return self._counter.value

    def compare_and_swap(self, old, new):
        return self._box.swap(self._counter, old, new)


@pytest.mark.parametrize("is_late", [False, True], ids=["applied at once", "applied later"])
def test_a_publication_whose_effect_is_unknown_counts_once(box, name, is_late):
    state = {"w": torch.zeros(1 << 18)}
    late = LateBox(box, is_late=is_late)
    publisher = Publisher(late, name, state)
    assert publisher.publish() == 1
    late.is_slow = True
    state["w"] += 1
    with pytest.raises(smbox.RequestTimeoutError):
        publisher.publish()
    assert pulled(box, name) == ((1, {0.0}) if is_late else (2, {1.0}))
    state["w"] += 1
    assert publisher.publish() == 3
    assert pulled(box, name) == (3, {2.0})
    assert publisher.publish() == 4
    publisher.close()


def test_a_swap_of_a_predecessor_that_arrives_late_is_followed_by_the_next_version(box, name):
    late = LateBox(box, is_late=True)
    with Publisher(late, name, {"w": torch.full((1 << 18,), 1.0)}) as first:
        assert first.publish() == 1
        late.is_slow = True
        with pytest.raises(smbox.RequestTimeoutError):
            first.publish()
    with Publisher(box, name, {"w": torch.full((1 << 18,), 2.0)}) as second:
        late.arrive()
        with pytest.raises(smbox.StaleVersionError):
            pulled(box, name)  # its buffer is free already; nothing else is seen
        assert second.publish() == 3
    assert pulled(box, name) == (3, {2.0})

"""What a publisher finds of others under its name or a similar one, and what it leaves."""

from __future__ import annotations

import time
import uuid

import pytest
import torch

import smbox
from smbox.lease import expire
from smbox.roster import Roster
from smbox_torch import Publisher, Subscriber

pytestmark = pytest.mark.shares

WEIGHTS = {"w": torch.ones(3)}


@pytest.fixture
def name() -> str:
    """A name that no other test publishes under; with dots."""
    return f"run.{uuid.uuid4().hex}"


def regions_of(box, name):
    return {info.name for info in box.regions() if info.name.startswith(f"{name}.")}


class Passing:
    """A box that passes everything to another one."""

    def __init__(self, box) -> None:
        self._box = box

    __class__ = smbox.Box  # for smbox.join

    def __getattr__(self, name):
        return getattr(self._box, name)


def test_what_predecessors_left_is_freed(box, name):
    for _ in range(3):  # that end without a publication, and with two
        Publisher(box, name, WEIGHTS).close()
        with Publisher(box, name, WEIGHTS) as publisher:
            publisher.publish()
            publisher.publish()
    with Publisher(box, name, WEIGHTS) as publisher:
        assert len([n for n in regions_of(box, name) if ".buffer-" in n]) == 1  # the newest
        publisher.publish()
        kept = regions_of(box, name)
        assert len([n for n in kept if ".buffer-" in n]) == 1
        assert len([n for n in kept if n.endswith(".layout")]) == 1


def test_publications_with_similar_names_are_not_freed(box, name):
    others = [name.replace(".", "-"), f"{name}.1.layout", f"{name}.1.buffer-0"]
    for other in others:
        with Publisher(box, other, WEIGHTS) as publisher:
            publisher.publish()
    for _ in range(3):
        Publisher(box, name, WEIGHTS).close()
    for other in others:
        assert Subscriber(box, other).pull(timeout_s=0.0) == 1


def test_regions_that_another_process_frees_first_are_no_error(box, name):
    class FreeingBox(Passing):
        def regions(self):
            found = self._box.regions()
            for info in found:
                if info.name.startswith(f"{name}.1."):
                    self._box.free(info)
            return found

    with Publisher(box, name, WEIGHTS) as publisher:
        publisher.publish()
        publisher.publish()
    with Publisher(FreeingBox(box), name, WEIGHTS) as publisher:
        assert publisher.publish() == 3


@pytest.mark.parametrize("error", [ConnectionError, KeyboardInterrupt])
def test_a_constructor_that_fails_releases_the_name(box, name, error):
    class FailingBox(Passing):
        def counter(self, *_args):
            raise error

    for _ in range(2):  # and not at the collection of the first one
        with pytest.raises(error):
            Publisher(FailingBox(box), name, WEIGHTS)
    Publisher(box, name, WEIGHTS).close()


def test_a_replaced_publisher_does_not_set_the_newest_version_back(box, name):
    """Even if it is replaced just after the check of its membership."""
    with Publisher(box, name, WEIGHTS) as publisher:
        publisher.publish()
        newest = box.counter(f"{name}.newest")
        newest.add(1 << 40)  # a successor's term
        with pytest.raises(smbox.LeaseLostError, match="replaced"):
            publisher.publish()
        assert newest.value == (2 << 40) + 1


def test_a_replaced_publisher_with_a_new_layout_frees_nothing(box, name):
    weights = dict(WEIGHTS)
    first = Publisher(box, name, weights)
    first.publish()
    first.close()
    with Publisher(box, name, WEIGHTS) as second:
        assert [second.publish(), second.publish()] == [2, 3]
        weights["w"] = torch.ones(4)
        with pytest.raises(smbox.LeaseLostError):
            first.publish()
        assert second.publish() == 4


def test_a_publisher_that_is_replaced_while_it_writes_is_told(box, name, hooked):
    successors = []

    def succeed(verb, _region):
        if verb == "put_nb" and not successors:
            first.close()
            successors.append(Publisher(box, name, WEIGHTS))
            successors[0].publish()

    first = Publisher(hooked(box, succeed), name, WEIGHTS)
    with pytest.raises(smbox.LeaseLostError):
        first.publish()
    assert Subscriber(box, name).pull(timeout_s=0.0) == 1
    successors[0].close()


def test_a_reader_continues_with_a_successor(box, name):
    subscriber = Subscriber(box, name)
    for version in (1, 2):
        weights = {"w": torch.full((100 * version,), float(version))}
        with Publisher(box, name, weights) as publisher:
            publisher.publish()
        assert subscriber.pull(timeout_s=0.0) == version
        assert torch.equal(subscriber.state["w"], weights["w"])


def test_a_version_that_a_predecessor_had_is_told_at_once(box, name):
    with Publisher(box, name, WEIGHTS) as publisher:
        assert [publisher.publish(), publisher.publish()] == [1, 2]
    with Publisher(box, name, WEIGHTS) as publisher:
        assert publisher.publish() == 3
    begun_s = time.monotonic()
    with pytest.raises(smbox.StaleVersionError):  # it has no buffer
        Subscriber(box, name).pull(version=2, timeout_s=60.0)
    assert time.monotonic() - begun_s < 30.0


def test_a_layout_that_a_successor_frees_while_it_is_read_is_no_error(box, name):
    """A publisher that was replaced while it was made learns that from ``publish``."""
    with Publisher(box, name, WEIGHTS) as publisher:
        publisher.publish()
    made = []

    class StoppedBox(Passing):
        def attach(self, name_, **more):
            found = self._box.attach(name_, **more)
            if name_.endswith(".layout"):
                row = Roster(self._box, f"{name}.publisher").place(0)
                assert expire(row, int(row.get()[0, 0]))
                made.append(Publisher(box, name, WEIGHTS))
                assert made[0].publish() == 2
            return found

    publisher = Publisher(StoppedBox(box), name, WEIGHTS, lease_s=3600.0)
    with pytest.raises(smbox.LeaseLostError):
        publisher.publish()
    made[0].close()


def test_buffers_that_an_interrupted_publication_left_are_freed_by_the_next(box, name):
    class FailingBox(Passing):
        fails = False

        def regions(self):
            if self.fails:
                raise KeyboardInterrupt
            return self._box.regions()

    with Publisher(box, name, WEIGHTS) as publisher:
        publisher.publish()
    failing = FailingBox(box)
    with Publisher(failing, name, WEIGHTS, keep=2) as publisher:
        failing.fails = True
        with pytest.raises(KeyboardInterrupt):
            publisher.publish()
        failing.fails = False
        for _ in range(3):
            publisher.publish()
            assert len([n for n in regions_of(box, name) if ".buffer-" in n]) <= 2

"""The data path of striped regions."""

from __future__ import annotations

import threading
import time
from inspect import signature
from types import SimpleNamespace

import numpy as np
import pytest

from smbox.config import ClientConfig
from smbox.errors import ConfigError, PeerLostError, SystemLimitError
from smbox.many.box import ManyBox
from smbox.many.paths import ManyPath
from smbox.many.striping import Node
from smbox.memory import layout
from smbox.memory.layout import STRIPE_NBYTES, Superblock
from smbox.memory.segment import Segment
from smbox.paths.local import LocalPath
from smbox.paths.pair import PathPair
from smbox.paths.requests import Reading
from smbox.testing.many_box import StripingBox

LIFE = {"say_bye", "close", "abandon", "check_not_nested"}
"""What is asked of the paths of each node."""


class Opened(ManyBox):
    """Keeps its nodes, by id."""

    def __init__(self, nodes):
        super().__init__(nodes)
        self.by_id = {node.id: node for node in nodes}


@pytest.fixture
def box(team):
    return team.box(Opened)


def verbs(kind):
    return {name for each in kind.__mro__[:-1] for name in vars(each) if name[0] != "_"}


def test_it_has_the_verbs_of_a_path_to_one_node_and_their_arguments():
    wanted = verbs(LocalPath) - LIFE
    assert wanted == verbs(ManyPath)
    for verb in wanted - {"transport"}:
        found = signature(getattr(ManyPath, verb)).parameters
        assert list(found) == list(signature(getattr(LocalPath, verb)).parameters)


def test_the_start_of_a_request_is_no_progress(box, team):
    """A blocking verb waited twice for a node that never answered it."""
    region = box.create("w", init=np.zeros(12, np.float32), layout="striped")
    part = region[4:8]
    team.nodes[1].is_down = True
    reading = Reading(part.info, part.first, part.limit, np.empty(4, np.float32))
    work = ManyPath(box.by_id).start(reading)
    before = work.progress()
    assert not work.advance(0.0)
    assert work.progress() == before
    team.nodes[1].is_down = False
    assert work.advance(time.monotonic() + 30.0)
    assert work.progress() > before


def test_a_shifted_source_is_refused_at_the_stripes_of_a_part(box):
    """The stripes of the parts have other boundaries than those of the whole region."""
    part = 2 * STRIPE_NBYTES + 8
    region = box.create("w", shape=(3 * part,), dtype="uint8", layout="striped")
    border = part + STRIPE_NBYTES
    assert [each.first_row for each in region.parts] == [0, part, 2 * part]
    with pytest.raises(ConfigError, match="overlap over several stripes"):
        region[border - 4 : border + 4].accumulate_from(region[border - 2 : border + 6])
    region[border : border + 4].put(np.arange(4, dtype=np.uint8))
    region[border + 2 : border + 6].accumulate_from(region[border : border + 4])
    assert region[border : border + 6].get().tolist() == [0, 1, 2, 4, 2, 3]


def test_a_share_that_cannot_be_started_has_no_effect(box):
    region = box.create("w", shape=(3, 4), layout="striped")
    box.by_id[region.parts[1].node].paths.close()
    handle = region.put_nb(np.ones((3, 4), np.float32))
    with pytest.raises(ConfigError, match="closed"):
        handle.wait()
    assert handle.outcome() == "partial"
    assert handle.ranges_done() == [(0, 16), (32, 48)]


@pytest.fixture
def refused(box, monkeypatch):
    """A striped region; the next shares of its second part cannot be started."""
    region = box.create("w", shape=(3, 4), layout="striped")
    node = box.by_id[region.parts[1].node]

    def refuse(_):
        raise SystemLimitError("too many open files")

    monkeypatch.setattr(node.paths, "work_of", refuse)
    return region


def test_flush_tells_of_shares_that_could_not_be_started(box, refused):
    """It told nothing: no queue of the node had the change."""
    for _ in range(2):
        refused.put_nb(np.ones((3, 4), np.float32))
    with pytest.raises(SystemLimitError) as caught:
        box.flush()
    assert caught.value.facts["node"] == refused.parts[1].node
    assert len(caught.value.__notes__) == 1
    box.flush()


def test_flush_tells_of_no_share_whose_error_was_raised_and_of_no_read(box, refused):
    refused.get_nb()
    for call in (refused.put, lambda x: refused.put_nb(x).wait()):
        with pytest.raises(SystemLimitError):
            call(np.ones((3, 4), np.float32))
    box.flush()


def test_a_flush_of_lost_nodes_names_the_first_and_completes_the_changes_at_others(
    box, monkeypatch
):
    flushed, (first, other, last) = [], box.by_id.values()

    def lost(**_):
        raise PeerLostError("the node is lost")

    for node in (first, last):
        monkeypatch.setattr(node.box, "flush", lost)
    monkeypatch.setattr(other.box, "flush", lambda **_: flushed.append(other))
    with pytest.raises(PeerLostError) as caught:
        box.flush()
    assert caught.value.facts["node"] == first.id
    assert flushed == [other]


def test_a_wait_for_a_sum_ends_with_one_change_of_any_part(box):
    region = box.create("w", init=np.zeros(12, np.float32), layout="striped")
    wait = ManyPath(box.by_id).wait_version(region.info, region.version + 1)
    change = threading.Timer(0.05, region[9:].accumulate, [np.ones(3, np.float32)])
    change.start()
    begun_s = time.monotonic()
    assert wait.advance(begun_s + 20.0)
    assert time.monotonic() < begun_s + 10.0
    change.join()


def test_transports_are_told_in_one_order():
    kinds = ("tcp", "shm", "ipc", "tcp")
    nodes = dict(enumerate(SimpleNamespace(box=SimpleNamespace(transport=x)) for x in kinds))
    assert ManyPath(nodes).transport == "ipc+shm+tcp"


def test_an_error_of_mapped_memory_names_its_node_too(solo):
    """Its fact "node" was the name of the memory."""
    paths = PathPair(ClientConfig(solo.control.address), solo)
    with StripingBox([Node(paths, solo.control.node.node_id)]) as box:
        region = box.create("w", shape=3)
        segment = Segment.attach(layout.name_of(solo.control.node.name, "node"))
        words = segment.words(0, 16)
        words[Superblock.UUID_LOW] += 1  # another memory has the name
        with pytest.raises(PeerLostError) as caught:
            region.get()
        words[Superblock.UUID_LOW] -= 1
    facts = caught.value.facts
    assert (facts["node"], facts["node_name"]) == (0, solo.control.node.name)

"""The pair of paths: opened once, closed for good, one for all pickles of equal settings."""

from __future__ import annotations

import gc
import math
import os
import pickle
import weakref

import pytest
from msgspec.structs import replace

from smbox import dtypes
from smbox.address import GlobalAddress
from smbox.config import ClientConfig
from smbox.errors import ConfigError, PeerLostError
from smbox.paths import pair
from smbox.paths.opening import OpenPaths
from smbox.paths.pair import PathPair
from smbox.paths.requests import NodeInfo, RegionInfo
from smbox.testing.contract_tools import in_threads

CONFIG = ClientConfig("tcp://127.0.0.1:9", timeout_s=3.0)


class Fake:
    node = NodeInfo("n", bytes(16), 1, 1)

    def __init__(self):
        self.log = []

    def say_bye(self):
        self.log += [] if "bye" in self.log else ["bye"]

    def close(self):
        self.log.append("close")

    def abandon(self):
        self.log.append("abandon")


OPENED = []


def open_fake(config):
    assert config == CONFIG
    OPENED.append(OpenPaths(Fake(), Fake(), "a test"))
    return OPENED[-1]


@pytest.fixture(autouse=True)
def forgotten():
    OPENED.clear()


def logs():
    return [(opened.data.log, opened.control.log) for opened in OPENED]


def test_paths_open_on_first_use_and_once():
    paths = PathPair(CONFIG, open_fake)
    assert OPENED == []
    in_threads(4, lambda _: paths.data())
    assert len(OPENED) == 1
    assert paths.control() is OPENED[0].control
    assert paths.open().reason == "a test"
    assert paths.timeout_s == 3.0


def test_paths_that_a_signal_handler_closes_while_they_open_are_closed():
    """They stayed open, and the closed box could be used."""

    def open_interrupted(config):
        opened = open_fake(config)
        paths.close()
        return opened

    paths = PathPair(CONFIG, open_interrupted)
    for _ in range(2):
        with pytest.raises(ConfigError, match="the box was closed"):
            paths.data()
    assert logs() == [(["bye", "close"], ["bye", "close"])]


def test_how_long_to_wait_is_a_number():
    paths = PathPair(CONFIG, open_fake)
    assert (paths.seconds(None), paths.seconds(0.5), paths.seconds(math.inf)) == (
        3.0,
        0.5,
        math.inf,
    )
    with pytest.raises(ConfigError, match="number"):
        paths.seconds(math.nan)


def test_closing_is_for_good():
    paths = PathPair(CONFIG, open_fake)
    paths.data()
    paths.close()
    paths.close()
    assert logs() == [(["bye", "close"], ["bye", "close"])]
    for use in (paths.data, paths.control):
        with pytest.raises(ConfigError, match="closed"):
            use()


def test_a_forked_child_opens_its_own():
    paths = PathPair(CONFIG, open_fake)
    first = paths.data()
    child = os.fork()
    if child == 0:
        is_dropped = logs() == [(["abandon"], ["abandon"])]
        os._exit(7 if is_dropped and paths.data() is not first else 1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 7
    assert paths.data() is first


def test_pickles_of_equal_settings_share_one_pair():
    paths = PathPair(CONFIG, open_fake)
    one, two = (pickle.loads(pickle.dumps(paths)) for _ in range(2))
    assert one is two
    assert one is not paths
    assert one.config == CONFIG
    one.close()
    assert pickle.loads(pickle.dumps(paths)) is not one


def test_the_pair_of_pickles_stays_open():
    """Each task of a pool connected anew, until the node had no room for channels."""
    travelled = pickle.dumps(PathPair(CONFIG, open_fake))
    for _ in range(2):
        pickle.loads(travelled).data()
        gc.collect()
    pickle.loads(travelled).close()
    assert logs() == [(["bye", "close"], ["bye", "close"])]


def test_a_pair_that_nobody_has_is_forgotten():
    found = weakref.ref(PathPair(CONFIG, open_fake))
    gc.collect()
    assert found() is None


def test_what_is_open_at_exit_is_closed():
    paths = PathPair(CONFIG, open_fake)
    paths.data()
    pair._close_all()
    assert paths.is_closed
    assert logs() == [(["bye", "close"], ["bye", "close"])]


def test_all_nodes_are_told_at_exit_before_any_is_waited_for():
    told = []

    class Told(Fake):
        def say_bye(self):
            told.append("bye")

        def close(self):
            told.append("close")

    pairs = [PathPair(CONFIG, lambda _: OpenPaths(Told(), Told())) for _ in range(2)]
    for each in pairs:
        each.data()
    pair._close_all()
    assert told[:4] == ["bye"] * 4
    assert told.count("close") == 4


def test_a_search_by_address_uses_time_of_its_call():
    known = RegionInfo(
        "r", dtypes.by_name("int8"), (), address=GlobalAddress(4096), node_uuid=bytes(16)
    )

    class Directory(Fake):
        def locate(self, address, timeout_s):
            assert 0.0 < timeout_s <= 9.0
            return known

    found = PathPair(CONFIG, lambda _: OpenPaths(Directory(), Fake()))
    _, first, left_s = found.locate(4096, 1, 9.0)
    assert first == 0
    assert 0.0 < left_s < 9.0
    assert found.locate(4096, 1, None)[2] is None


def test_a_call_waits_as_long_as_it_was_told_or_as_the_settings_say():
    found = PathPair(CONFIG, open_fake)
    assert (found.seconds(None), found.seconds(0.5), found.seconds(0.0)) == (3.0, 0.5, 0.0)


def test_only_regions_of_the_memory_that_answers_find_a_path():
    found = PathPair(CONFIG, open_fake)
    address, uuid = GlobalAddress(4096), bytes(16)
    known = RegionInfo("r", dtypes.by_name("int8"), (), address=address, node_uuid=uuid)
    assert found.data(known) is found.data()
    assert found.control(known) is found.control()
    for path in (found.data, found.control):
        with pytest.raises(PeerLostError, match="in another memory") as caught:
            path(replace(known, node_uuid=b"x" * 16))
        assert caught.value.facts["outcome"] == "none"

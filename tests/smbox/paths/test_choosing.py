"""Which path is chosen, and what is said when the one asked for cannot work."""

from __future__ import annotations

import pytest

from smbox.config import ClientConfig
from smbox.errors import ConfigError, SystemLimitError
from smbox.native import library
from smbox.paths import opening
from smbox.paths.local import LocalPath
from smbox.paths.opening import OpenPaths, open_paths, why_messages
from smbox.paths.requests import NodeInfo

ELSEWHERE = NodeInfo("no-such-node", b"x" * 16, 0, 1)


def config(transport, address="tcp://127.0.0.1:7070"):
    return ClientConfig(address, transport=transport)


@pytest.mark.parametrize("transport", ["auto", "shm"])
def test_shared_memory_is_mapped(solo, transport):
    assert why_messages(config(transport), solo.control.node) is None


def test_auto_takes_messages_where_memory_is_not_shared():
    assert "not in this /dev/shm" in why_messages(config("auto"), ELSEWHERE)


def test_auto_takes_no_messages_for_want_of_descriptors(solo, monkeypatch, no_more_files):
    monkeypatch.setattr(library, "why_not_native", lambda: None)
    with no_more_files():
        with pytest.raises(SystemLimitError, match="ulimit"):
            why_messages(config("auto"), solo.control.node)
        assert why_messages(config("tcp"), solo.control.node) == "transport tcp was requested"


def test_shm_that_cannot_work_says_why():
    with pytest.raises(ConfigError, match="not in this /dev/shm"):
        why_messages(config("shm"), ELSEWHERE)


def test_messages_can_be_forced(solo):
    assert why_messages(config("tcp"), solo.control.node) == "transport tcp was requested"
    ipc = config("ipc", "ipc:///tmp/x")
    assert why_messages(ipc, solo.control.node) == "transport ipc was requested"


@pytest.mark.parametrize(
    ("transport", "address"), [("tcp", "ipc:///tmp/x"), ("ipc", "tcp://127.0.0.1:7070")]
)
def test_a_scheme_that_differs_says_why(transport, address):
    with pytest.raises(ConfigError, match="the scheme of the address is"):
        why_messages(config(transport, address), ELSEWHERE)


@pytest.mark.parametrize(
    "why_not", ["SMBOX_NO_NATIVE=1 is set", "the native library is not built"]
)
def test_without_the_native_library_nothing_is_mapped(solo, monkeypatch, why_not):
    monkeypatch.setattr(library, "why_not_native", lambda: why_not)
    node = solo.control.node
    assert why_messages(config("auto"), node) == why_not
    assert why_messages(config("tcp"), node) == "transport tcp was requested"
    with pytest.raises(ConfigError, match=why_not):
        why_messages(config("shm"), node)


class Fake:
    transport = "tcp"

    def __init__(self, node):
        self.node = node
        self.is_closed = False

    def close(self):
        self.is_closed = True


@pytest.fixture
def remote(solo, monkeypatch):
    found = OpenPaths(Fake(solo.control.node), Fake(None))
    monkeypatch.setattr(opening, "open_remote", lambda config: found)
    return found


def test_a_mapped_memory_needs_no_messages_for_data(remote):
    opened = open_paths(config("auto"))
    assert isinstance(opened.data, LocalPath)
    assert opened.control is remote.control
    assert "keeps its memory in this /dev/shm" in opened.reason
    assert not remote.control.is_closed
    opened.data.close()


def test_messages_say_why(remote):
    opened = open_paths(config("tcp"))
    assert opened.data is remote.data
    assert opened.reason == "transport tcp was requested"
    remote.control.node = ELSEWHERE
    assert "not in this /dev/shm" in open_paths(config("auto")).reason
    assert not remote.data.is_closed


def test_a_refused_transport_leaves_nothing_open(remote):
    with pytest.raises(ConfigError):
        open_paths(config("ipc"))
    assert remote.control.is_closed  # the data path has opened nothing

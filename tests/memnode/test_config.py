from __future__ import annotations

from pathlib import Path

import pytest

from memnode.config import IPC_PATH_LENGTH_MAX, Bind, NodeConfig
from smbox.errors import ConfigError

LOOPBACK = Bind.parse("tcp://127.0.0.1:0")


def test_addresses():
    assert Bind("tcp://127.0.0.1:0", "tcp", "127.0.0.1", 0) == LOOPBACK
    assert Bind.parse("tcp://[::1]:7070").port == 7070
    assert Bind.parse("ipc:///run/x").host == "/run/x"


@pytest.mark.parametrize(
    "address",
    ["", "127.0.0.1:1", "tcp://", "tcp://host", "tcp://:1", "tcp://h:x", "tcp://h:70000", "tcp://::1:1",
     "udp://h:1", "ipc://", "ipc://" + "x" * 108, "ipc://" + "ü" * 54,
     "ipc:///tmp/\udcff", "tcp://\udcff:1"],
)  # fmt: skip
def test_what_is_no_address(address):
    with pytest.raises(ConfigError):
        Bind.parse(address)


@pytest.mark.parametrize(
    ("address", "is_private"),
    [
        ("tcp://127.0.0.1:1", True),
        ("tcp://127.9.9.9:1", True),
        ("tcp://localhost:1", True),
        ("tcp://[::1]:1", True),
        ("ipc:///run/x", True),
        ("tcp://0.0.0.0:1", False),
        ("tcp://10.0.0.5:1", False),
        ("tcp://*:1", False),
        ("tcp://eth0:1", False),
    ],
)
def test_who_can_reach_an_address(address, is_private):
    assert Bind.parse(address).is_private is is_private


def test_an_open_address_needs_insecure():
    wide = Bind.parse("tcp://0.0.0.0:0")
    with pytest.raises(ConfigError, match="--insecure"):
        NodeConfig(binds=(LOOPBACK, wide))
    NodeConfig(binds=(LOOPBACK, wide), insecure=True)
    NodeConfig(binds=(LOOPBACK, wide), keys=Path("keys"))


def test_the_last_values_that_are_possible():
    longest = "ipc:///" + "x" * (IPC_PATH_LENGTH_MAX - 1)
    config = NodeConfig((Bind.parse(longest),), name="x" * 64, parent_pid=1, node_id=65535)
    assert config.binds[0].address == longest


@pytest.mark.parametrize(
    "wrong",
    [
        {"binds": ()},
        {"name": ""},
        {"name": "a/b"},
        {"name": "a.b"},
        {"name": "-a"},
        {"name": "x" * 65},
        {"memory_nbytes": 4096},
        {"memory_nbytes": 10**20},
        {"parent_pid": 0},
        {"node_id": -1},
        {"node_id": 1 << 16},
        {"insecure": True, "keys": Path("keys")},
    ],
)
def test_impossible_settings_are_refused_when_made(wrong):
    with pytest.raises(ConfigError):
        NodeConfig(**({"binds": (LOOPBACK,)} | wrong))


@pytest.mark.parametrize(
    ("addresses", "name", "known"),
    [
        (["tcp://127.0.0.1:7070"], None, "7070"),
        (["tcp://127.0.0.1:0"], None, None),
        (["tcp://127.0.0.1:0"], "lab", "lab"),
        (["ipc:///run/my.sock"], None, "my-sock"),
        (["ipc://@"], None, "ipc"),
    ],
)
def test_the_name_comes_from_the_first_address(addresses, name, known):
    binds = tuple(Bind.parse(address) for address in addresses)
    assert NodeConfig(binds=binds, name=name).known_name == known

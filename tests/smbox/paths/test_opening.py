from __future__ import annotations

from dataclasses import replace

import pytest

from smbox.config import ClientConfig
from smbox.errors import AccessDeniedError, ConfigError, ConnectError
from smbox.memory import layout
from smbox.memory.segment import unlink
from smbox.paths.opening import open_over, open_remote
from smbox.transports import resolving

CONFIG = ClientConfig("inproc://node", timeout_s=30.0)


def test_both_paths_come_greeted(node):
    remote = open_over(node.connect, "inproc://node", CONFIG)
    assert remote.control.node.name == node.name
    assert remote.data.transport == "inproc"
    remote.data.close()
    remote.control.close()


def test_an_address_is_needed():
    with pytest.raises(ConfigError):
        open_remote(ClientConfig())


def test_nobody_answers():
    config = ClientConfig("tcp://127.0.0.1:9", timeout_s=0.05)
    with pytest.raises(ConnectError) as caught:
        open_remote(config)
    assert caught.value.facts["address"] == "tcp://127.0.0.1:9"


def test_a_host_that_nobody_knows_is_called_that(monkeypatch):
    monkeypatch.setattr(resolving, "LOOK_UP_S", 20.0)  # a slow name server is no failure here
    config = ClientConfig("tcp://no-such-host.invalid:9", timeout_s=0.05)
    with pytest.raises(ConnectError, match="name cannot be resolved"):
        open_remote(config)


def test_who_cannot_read_the_cookie_is_refused(node):
    unlink(layout.cookie_name(node.name))
    with pytest.raises(AccessDeniedError):
        open_over(node.connect, "inproc://node", CONFIG)


def test_a_deaf_node_is_no_node(node):
    node.is_down = True
    with pytest.raises(ConnectError):
        open_over(node.connect, "inproc://node", replace(CONFIG, timeout_s=0.05))

"""Connecting to all nodes or to none, without nodes."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from smbox.config import ClientConfig
from smbox.errors import ConfigError, ConnectError
from smbox.many import connecting

IDS = {"tcp://a:1": 0, "tcp://b:1": 1, "tcp://again:1": 1}


@pytest.fixture
def closed(monkeypatch):
    """The addresses whose paths were closed, in order; only those with an id have a node."""
    found = []

    class Paths:
        def __init__(self, config, _opener):
            self.config = config

        def control(self):
            if self.config.address not in IDS:
                raise ConnectError("no node", address=self.config.address)
            return SimpleNamespace(node=SimpleNamespace(node_id=IDS[self.config.address]))

        def close(self):
            found.append(self.config.address)

    monkeypatch.setattr(connecting, "PathPair", Paths)
    return found


@pytest.mark.parametrize(
    ("last", "error"), [("tcp://nowhere:1", ConnectError), ("tcp://again:1", ConfigError)]
)
def test_all_nodes_are_connected_or_none(closed, last, error):
    with pytest.raises(error, match=last):
        connecting.connect(ClientConfig(), ["tcp://a:1", "tcp://b:1", last])
    assert closed == [last, "tcp://b:1", "tcp://a:1"]

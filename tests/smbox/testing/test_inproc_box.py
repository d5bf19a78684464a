from __future__ import annotations

import secrets
import time
from functools import partial

import numpy as np
import pytest

from memnode.node import Node
from smbox.config import ClientConfig
from smbox.errors import ConfigError
from smbox.memory.node_memory import NodeMemory
from smbox.testing.faults import FaultScript
from smbox.testing.inproc import InprocHub
from smbox.testing.inproc_box import BIND, handle, inproc_box
from smbox.wire.ops import Op

CONFIG = ClientConfig(
    "inproc://here", timeout_s=30.0, resend_after_s=0.05, resend_after_max_s=0.1
)


class Recorder:
    """A node that answers every message to its sender and to a third connection."""

    def __init__(self):
        self.calls = []

    def receive(self, connection, frames, *, now_s):
        self.calls.append((connection, frames, now_s))
        return [(connection, frames), ((BIND, b"third"), [b"x"])]

    def tick(self, *, now_s):
        self.calls.append((None, None, now_s))
        return []


@pytest.fixture
def hub():
    memory = NodeMemory.open(f"t{secrets.token_hex(4)}", 64 << 20)
    node = Node(memory, now_s=time.monotonic())
    yield InprocHub(partial(handle, node))
    node.close()
    memory.close(keep=False)


def test_messages_and_the_passing_of_time_reach_the_node():
    node = Recorder()
    before_s = time.monotonic()
    assert handle(node, b"me", [b"1"]) == [(b"me", [b"1"]), (b"third", [b"x"])]
    assert handle(node, b"me", []) == []
    (connection, frames, first_s), (nobody, _, second_s) = node.calls
    assert (connection, frames, nobody) == ((BIND, b"me"), [b"1"], None)
    assert before_s <= first_s <= second_s <= time.monotonic()


def test_boxes_share_the_node_and_map_nothing(hub):
    with inproc_box(hub.connect, CONFIG) as one, inproc_box(hub.connect, CONFIG) as two:
        assert (one.transport, one.address) == ("inproc", "inproc://here")
        assert "this process" in one.transport_reason
        region = one.create("r", init=np.zeros(3, np.int64))
        two.attach("r").accumulate([1, 2, 3])
        assert region.get().tolist() == [1, 2, 3]
        assert not region.is_local
        with pytest.raises(ConfigError):
            region.local()


def test_faults_fit_around_the_transport(hub):
    script = FaultScript().cut(Op.ACCUMULATE, side="reply")
    with inproc_box(script.around(hub.connect), CONFIG) as box:
        region = box.create("r", init=np.zeros(3, np.int64))
        region.accumulate([1, 1, 1])
        assert region.get().tolist() == [1, 1, 1]
        assert script.is_over()

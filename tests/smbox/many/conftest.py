"""Several nodes of this process, and boxes over all of them."""

from __future__ import annotations

import contextlib
from dataclasses import replace

import pytest

from smbox.config import ClientConfig
from smbox.many.box import ManyBox
from smbox.many.striping import home_of
from smbox.testing.inproc_box import inproc_box
from smbox.testing.many_box import inproc_many

CONFIG = ClientConfig(
    "inproc://many", timeout_s=30.0, resend_after_s=0.05, resend_after_max_s=0.2
)


class Team:
    """Nodes, by id, that tests disconnect, restart or empty."""

    def __init__(self, nodes, stack):
        self.nodes = {node.node_id: node for node in nodes}
        self._stack = stack

    def box(self, kind=ManyBox, order=None, **settings):
        ids = order or self.nodes
        transports = {node_id: self.nodes[node_id].connect for node_id in ids}
        made = inproc_many(transports, replace(CONFIG, **settings), kind)
        return self._stack.enter_context(made)

    def alone(self, node_id):
        """A box on one of the nodes."""
        config = replace(CONFIG, address=f"inproc://node{node_id}")
        return self._stack.enter_context(inproc_box(self.nodes[node_id].connect, config))

    def name_on(self, node_id, word="w"):
        """A name that belongs to a node."""
        tried = (f"{word}{number}" for number in range(10_000))
        return next(name for name in tried if home_of(name, self.nodes) == node_id)


@pytest.fixture
def team_of(nodes):
    with contextlib.ExitStack() as stack:
        yield lambda *ids: Team(nodes(*ids), stack)


@pytest.fixture
def team(team_of):
    """Three nodes with the ids 0, 1 and 5."""
    return team_of(0, 1, 5)


@pytest.fixture
def box(team):
    return team.box()

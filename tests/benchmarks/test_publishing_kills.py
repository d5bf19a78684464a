from __future__ import annotations

import json

import publishing_kills
import pytest
import torch


@pytest.mark.timeout(300)
def test_readers_meet_whole_versions_while_publisher_and_node_are_killed(program):
    words = ("--mib", "4", "--kills", "3", "--json")  # the third kills the node, too
    counts = json.loads(program(publishing_kills.__file__, *words))
    assert [each["transport"] for each in counts] == ["shm", "tcp"]
    for each in counts:
        assert each["pulls"] >= 2
        assert each["mixtures"] == each["not newer"] == 0
        assert each["last"] >= 3 * publishing_kills.PUBLISHED_BEFORE_KILL


def test_a_mixture_would_be_told():
    state = publishing_kills.weights(8.0)
    for tensor in state.values():
        tensor.fill_(7)
    assert publishing_kills.is_of_version(state, 7)
    assert not publishing_kills.is_of_version(state, 6)
    list(state.values())[1][-1] = torch.tensor(6.0)
    assert not publishing_kills.is_of_version(state, 7)

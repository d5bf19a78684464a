"""What the node counts."""

from __future__ import annotations

from memnode.context import Metrics
from smbox.wire.ops import Op, Status


def test_a_new_node_has_counted_nothing():
    assert set(Metrics().facts().values()) == {0}


def test_counts_have_flat_names():
    metrics = Metrics(sent_nbytes=12)
    metrics.requests[Op.PUT] += 2
    metrics.requests[Op.GET] += 1
    metrics.refusals[Status.GAP] += 1
    facts = metrics.facts()
    assert (facts["requests.PUT"], facts["requests.GET"]) == (2, 1)
    assert (facts["refusals.GAP"], facts["sent_nbytes"]) == (1, 12)
    assert "refusals" not in facts

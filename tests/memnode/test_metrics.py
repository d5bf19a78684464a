from __future__ import annotations

from memnode.metrics import Metrics
from smbox.wire.ops import Op
from smbox.wire.status import Status


def test_a_new_node_has_counted_nothing():
    assert set(Metrics().facts().values()) == {0}


def test_requests_and_bytes_are_counted_by_op():
    metrics = Metrics()
    metrics.request(Op.PUT, 100)
    metrics.request(Op.PUT, 20)
    metrics.request(Op.GET, 0)
    facts = metrics.facts()
    assert facts["requests.PUT"] == 2
    assert facts["requests.GET"] == 1
    assert facts["received_nbytes"] == 120


def test_refusals_are_counted_by_status():
    metrics = Metrics()
    metrics.reply(Status.OK, 8)
    metrics.reply(Status.GAP, 4)
    facts = metrics.facts()
    assert facts["sent_nbytes"] == 12
    assert facts["refusals.GAP"] == 1
    assert "refusals.OK" not in facts

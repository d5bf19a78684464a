"""The short form: two workers and 1 MB, and the bytes that the planner says."""

from __future__ import annotations

import pytest
from lab import needs
from server_or_ring import running
from server_or_ring.rows import Row, predicted

LACK = needs.missing()
pytestmark = [
    pytest.mark.skipif(bool(LACK), reason=f"there can be no laboratory: {LACK}"),
    pytest.mark.timeout(240),
]
ELEMENTS = 1 << 18
HEADERS = 1514 / 1448
SLACK = 0.15
"""Of the bytes: headers, acknowledgements, barriers and tables are not the planner's."""


@pytest.mark.usefixtures("forking")
@pytest.mark.parametrize("way", ["server-sync", "ddp", "easgd-striped"])
def test_a_way_runs_and_sends_what_the_planner_says(way: str):
    row = Row(
        "even",
        way,
        2,
        scale=1.0,
        compute_s=0.1,
        elements=ELEMENTS,
        iterations=4,
        period=2,
    )
    found = running.run(row)
    assert found["elements"] == ELEMENTS
    assert 0.0 < found["utilisation"] <= 1.0
    foreseen = predicted(row, ELEMENTS)
    for field, is_node in (("node", True), ("worker", False)):
        hosts = [
            use for name, use in found["hosts"].items() if name.startswith("node") == is_node
        ]
        for direction in ("in", "out"):
            expected = HEADERS * getattr(foreseen, f"{field}_{direction}")
            busiest = max(use[f"{direction}_bytes"] for use in hosts)
            assert busiest == pytest.approx(expected, rel=SLACK, abs=60e3), (field, direction)

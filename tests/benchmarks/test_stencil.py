from __future__ import annotations

import json

import pytest
import stencil


@pytest.mark.timeout(200)
def test_all_ways_compute_the_sequential_result(program):
    words = [
        "--sizes",
        "34",
        "--processes",
        "1,2",
        "--steps",
        "6",
        "--rounds",
        "1",
        "--calls",
        "20",
        "--json",
    ]
    found = json.loads(program(stencil.__file__, *words, timeout_s=180.0))
    ways = [stencil.BARE, *stencil.TRANSPORTS]
    assert [(row["processes"], row["way"]) for row in found["steps"]] == [
        (1, "sequential"),
        *((processes, way) for processes in (1, 2) for way in ways),
    ]
    assert all(row["step_us"] > 0 for row in found["steps"])
    assert [row["way"] for row in found["signals"]] == list(stencil.TRANSPORTS)


def test_a_wrong_result_is_no_result(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(stencil, "by_barriers", lambda size, plate: (1.0, plate))
    with pytest.raises(RuntimeError, match="not the sequential result"):
        stencil.main(["--sizes", "16", "--processes", "1", "--steps", "1"])

from __future__ import annotations

import io
import json

from lab.counters import Use
from lab.record import Record
from lab.spec import HostSpec
from rich.console import Console

HOST = HostSpec("worker", "10.77.0.1", 100.0, 0.0, (), 2, "")


def test_samples_hold_what_was_used_between_them_and_the_workers_rates_added_up():
    uses = iter([Use(in_bytes=5), Use(in_bytes=105, cpu_s=1.5), Use(in_bytes=305, cpu_s=2.0)])
    out = io.StringIO()
    record = Record([HOST], lambda: {"worker": next(uses)}, out, "real")
    record.sample()  # the period is not over
    record.report("worker", 0, {"images_per_s": 10.0})
    record.report("worker", 1, {"loss": 1.0})
    record.sample(now=True)
    record.report("worker", 1, {"images_per_s": 2.5})
    record.sample(now=True)
    rows = [json.loads(line) for line in out.getvalue().splitlines()]
    assert [row["in_bytes"] for row in rows] == [100, 200]
    assert [row["cpu_s"] for row in rows] == [1.5, 0.5]
    assert [row["images_per_s"] for row in rows] == [10.0, 12.5]
    shown = io.StringIO()
    Console(file=shown, width=140).print(record.table())
    assert "computation: real" in shown.getvalue()
    assert "11.2" in shown.getvalue()  # images/s: the mean of both samples

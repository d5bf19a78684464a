"""The lab starts what the rows need, and nothing of it is left."""

from __future__ import annotations

import psutil
import pytest

from smbox.cli.bench.lab import FULL, QUICK, ones, open_lab
from smbox.errors import ConnectError, RegionFreedError

pytestmark = pytest.mark.shares


def test_both_ways_lead_to_one_memory(lab):
    assert lab.local.transport == "shm"
    assert lab.remote.transport == "tcp"
    with lab.region(lab.local, 4096) as region:
        region.put(ones(4096))
        assert lab.remote.attach(region.name).get().sum() == 1024


def test_a_region_is_freed_afterwards(lab):
    with lab.region(lab.local, 4096) as region:
        assert region.version == 0
    with pytest.raises(RegionFreedError):
        region.put(ones(4096))


def test_unlocked_regions_are_made_to_order(lab):
    with lab.region(lab.remote, 4096, "none") as region:
        region.put(ones(4096))
        assert region.get()[0] == 1.0


def test_calls_are_timed_with_the_cpu_of_all_processes(lab):
    timing = lab.time({"sum": lambda: sum(range(1000))}, rounds=3)["sum"]
    assert len(timing.samples) == 3
    assert timing.seconds > 0


def test_what_was_started_is_stopped():
    with open_lab(QUICK) as opened:
        started = psutil.Process(opened.node_pid)
    assert not started.is_running()


def test_a_node_that_cannot_start_is_an_error(capfd):
    too_small = QUICK.__class__(**{**_fields(QUICK), "memory": "1KiB"})
    with pytest.raises(ConnectError), open_lab(too_small):
        pass
    assert "at least 1 MiB" in capfd.readouterr().err


def _fields(scale) -> dict:
    return {name: getattr(scale, name) for name in scale.__slots__}


def test_the_full_run_measures_what_the_documents_say():
    assert [size >> 20 for size in FULL.sizes] == [1, 16, 100, 528]
    assert (FULL.big_nbytes >> 20, FULL.huge_nbytes >> 20) == (100, 528)

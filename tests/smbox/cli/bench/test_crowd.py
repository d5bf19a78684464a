"""Several workers at once."""

from __future__ import annotations

import psutil
import pytest

from smbox.cli.bench.crowd import crowd
from smbox.cli.bench.worker import Job
from smbox.errors import WorkerLostError

pytestmark = pytest.mark.shares


def test_workers_begin_together_and_tell_what_they_did(lab):
    with lab.region(lab.local, 4096) as region:
        job = Job(lab.address, "shm", region.name, "accumulate", 4096)
        with crowd(job, 2) as clients:
            clients.begin(0.05, 2)
            shares = clients.end(2)
            assert all(share.calls > 0 and share.seconds >= 0.05 for share in shares)
            assert region.get()[0] == 2 + sum(share.calls for share in shares)
            assert clients.rate(0.01, 1) > 0
            pids = clients.pids
    assert not any(psutil.pid_exists(pid) for pid in pids)


def test_a_worker_that_ends_is_told(lab, capfd):
    job = Job(lab.address, "shm", "no-such-region", "get", 4096)
    with pytest.raises(WorkerLostError), crowd(job, 1):
        pass
    assert "RegionNotFoundError" in capfd.readouterr().err

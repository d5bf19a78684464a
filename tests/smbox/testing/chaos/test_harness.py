"""The schedule: it ends when there was enough, and tells what failed."""

from __future__ import annotations

import signal

import psutil
import pytest

from smbox.testing.chaos.harness import Harness, Settings

WORKER = "smbox.testing.chaos.worker"


def test_a_longer_run_wants_more():
    settings = Settings.of_minutes(7, 20)
    assert settings.seconds == 1200
    assert settings.strikes == 1500
    assert settings.kills_inside == 40
    assert Settings.of_minutes(7, 0.1).kills_inside == 1


@pytest.mark.timeout(300)
def test_a_client_that_ends_by_itself_is_a_fault(tmp_path):
    lines = []

    def hurt(line):
        lines.append(line)
        workers = [each for each in psutil.Process().children() if WORKER in each.cmdline()]
        # The last words of the command are client, life and seed.
        [client] = [each for each in workers if each.cmdline()[-3] == "1"]
        client.send_signal(signal.SIGABRT)

    verdict = Harness(Settings(seed=3, seconds=600, pace=1 << 40), tmp_path, hurt).run()
    (line,) = lines  # it begins with the minutes that have passed
    assert line.endswith(
        " of 10.0 minutes: 0 operations, 0 strikes, 0 kills inside a native commit"
    )
    assert any("shm client 1 ended with -6" in fault for fault in verdict.faults)
    assert "FAULT" in verdict.text()

"""The schedule: it ends when there was enough, and tells what failed."""

from __future__ import annotations

import signal

import pytest

from smbox.testing.chaos.harness import Harness, Settings


def test_a_longer_run_wants_more():
    settings = Settings.of_minutes(7, 20)
    assert settings.seconds == 1200
    assert settings.strikes == 1500
    assert settings.kills_inside == 40
    assert Settings.of_minutes(7, 0.1).kills_inside == 1


@pytest.mark.timeout(300)
def test_a_client_that_ends_by_itself_is_a_fault(tmp_path):
    harness = Harness(Settings(seed=3, operations=1 << 60, pace=1 << 40), tmp_path)
    raise_curtain = harness._raise_curtain

    def raise_and_hurt():
        raise_curtain()
        harness._clients[1].process.send_signal(signal.SIGABRT)

    harness._raise_curtain = raise_and_hurt
    verdict = harness.run()
    assert any("shm client 1 ended with -6" in fault for fault in verdict.faults)
    assert "FAULT" in verdict.text()

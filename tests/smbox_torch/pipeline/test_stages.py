"""Stages that died before another one looked at them."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from smbox.errors import RequestTimeoutError, WorkerLostError
from smbox_torch.pipeline.stages import Stages
from smbox_torch.workers.joining import team_of

pytestmark = pytest.mark.shares

LONG_S = 60.0
LEASE_S = 60.0

JOIN = """
import sys, time
import smbox
from smbox_torch.workers.joining import team_of
address, name, lease_s = sys.argv[1:]
with smbox.connect(address, timeout_s=60.0) as box:
    team_of(box, name, 3, rank=2, lease_s=float(lease_s))
    print("here", flush=True)
    time.sleep(600)
"""


@pytest.fixture
def come(preloaded, node, name) -> Callable[..., Callable[[], None]]:
    """``come(lease_s)``: stage 2 comes, as a process; call what is returned to kill it."""

    def start(lease_s: float = LEASE_S) -> Callable[[], None]:
        command = [preloaded, "-c", JOIN, node.address, name, str(lease_s)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

        def kill() -> None:
            process.kill()
            process.communicate()

        if process.stdout.readline() != "here\n":
            kill()
            raise AssertionError
        return kill

    return start


@contextmanager
def stage_1(node, name, timeout_s: float = LONG_S) -> Iterator[Stages]:
    team = team_of(node, name, 3, rank=1, lease_s=LEASE_S)
    try:
        yield Stages(node, team, 3, timeout_s)
    finally:
        team.leave()


def test_a_stage_that_came_first_and_died_before_another_waits_is_lost(node, name, come):
    kill = come()
    with stage_1(node, name) as stages:
        kill()
        with pytest.raises(WorkerLostError) as caught:
            stages.wait_for_region(f"{name}.never", 2)
    assert (caught.value.facts["stage"], caught.value.facts["how"]) == (2, "died")


def test_a_stage_that_came_later_and_died_before_another_waits_is_lost(node, name, come):
    with stage_1(node, name) as stages:
        come()()
        with pytest.raises(WorkerLostError) as caught:
            stages.wait_for_region(f"{name}.never", 2)
    assert (caught.value.facts["stage"], caught.value.facts["how"]) == (2, "died")


def test_a_place_that_a_killed_run_has_left_is_no_lost_stage(node, name, come):
    """Not even when the mark that its lease is over changes its word."""
    come(lease_s=0.5)()
    with (
        stage_1(node, name, timeout_s=2.0) as stages,
        pytest.raises(RequestTimeoutError, match="stage 2 did not respond"),
    ):
        stages.wait_for_region(f"{name}.never", 2)

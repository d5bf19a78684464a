"""How long a pull waits for a node that does not answer."""

from __future__ import annotations

import math

import pytest

import smbox
from smbox_torch.publishing.pull import QUIET_S, Pull


def pull(timeout_s: float) -> Pull:
    return Pull(None, 3, timeout_s, None, None)


class Silent:
    """A box, region and handle that time out; they record the timeouts.

    Args:
        times: how often, before they have an answer.
    """

    def __init__(self, times: float = math.inf) -> None:
        self.timeouts_s: list[float] = []
        self.is_cancelled = False
        self._times = times

    def attach(self, _name: str, *, timeout_s: float) -> str:
        self.timeouts_s.append(timeout_s)
        if len(self.timeouts_s) <= self._times:
            raise smbox.RequestTimeoutError("silent")
        return "an answer"

    def get_nb(self, *, out: object) -> Silent:
        assert out is None
        return self

    def result(self) -> str:
        return self.attach("", timeout_s=self.timeout_s)

    def facts(self) -> dict[str, object]:
        return {"holder_pid": 7}

    def cancel(self) -> None:
        self.is_cancelled = True


def test_a_wait_is_until_the_deadline_or_the_next_check():
    assert pull(math.inf).wait_s(0.5) == 0.5
    assert pull(-1.0).wait_s(0.5) == 0.0
    assert 50.0 < pull(60.0).wait_s(math.inf) <= 60.0
    cancelled = pull(math.inf)
    cancelled.cancel()
    assert cancelled.wait_s(math.inf) == 0.0


def test_a_region_is_opened_with_longer_waits_of_a_few_seconds_until_the_deadline():
    box = Silent(times=4)
    assert pull(math.inf).open(box, "name") == "an answer"
    assert box.timeouts_s == [0.0, 1.0, 3.0, 3.0, 3.0]  # a cancel waits for the last one
    box = Silent(times=2)
    pull(2.0).open(box, "name")
    assert box.timeouts_s[:2] == [0.0, 1.0]
    assert 0.0 < box.timeouts_s[2] <= 2.0


def test_a_read_is_tried_at_longer_intervals_until_the_deadline():
    region = Silent(times=4)
    assert pull(math.inf).read(region) == "an answer"
    assert region.timeouts_s == [QUIET_S, 2 * QUIET_S, *[4 * QUIET_S] * 3]
    region = Silent(times=1)
    pull(1.5 * QUIET_S).read(region)
    assert region.timeouts_s[0] == QUIET_S
    assert QUIET_S <= region.timeouts_s[1] <= 1.5 * QUIET_S
    assert not region.is_cancelled


def test_behind_the_deadline_a_read_has_one_interval_and_is_cancelled():
    region = Silent()
    with pytest.raises(smbox.RequestTimeoutError, match="did not answer") as caught:
        pull(0.0).read(region)
    assert region.timeouts_s == [QUIET_S]
    assert region.is_cancelled
    wanted = {"op": "pull", "at_least": 4, "timeout_s": 0.0, "outcome": "none", "holder_pid": 7}
    assert caught.value.facts == wanted


def test_behind_the_deadline_a_region_is_tried_once():
    box = Silent()
    with pytest.raises(smbox.RequestTimeoutError, match="did not answer") as caught:
        pull(0.0).open(box, "name")
    assert box.timeouts_s == [0.0]
    assert caught.value.facts["at_least"] == 4

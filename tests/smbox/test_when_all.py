"""when_all: driven in turn, all waited for, the first error in order."""

from __future__ import annotations

import math

import pytest

from smbox.errors import ConfigError, RegionFreedError, RequestTimeoutError
from smbox.handle import Handle, when_all

NEVER_S = 1000.0


class Step:
    """A request that is done at its n-th advance, or fails there."""

    def __init__(self, turns, error=None, known="none"):
        self.left, self.failure, self.known = turns, error, known

    def advance(self, deadline_s):
        self.left -= 1
        if self.left > 0:
            return False
        if self.failure is not None:
            raise self.failure
        return True

    def begin(self):
        pass

    def progress(self):
        return 0

    def outcome(self):
        return self.known

    def ranges_done(self):
        return []

    def facts(self):
        return {"left": self.left}


def handle(turns, value=None, error=None, timeout_s=NEVER_S, known="none"):
    return Handle("get", Step(turns, error, known), lambda: value, timeout_s)


def test_the_results_come_in_order_whoever_is_first():
    assert when_all([handle(9, "a"), handle(1, "b"), handle(4, "c")]).result() == (
        "a",
        "b",
        "c",
    )


def test_all_are_waited_for_and_the_first_error_is_raised():
    late, first, second = handle(9, "a"), RegionFreedError("first"), RegionFreedError("second")
    both = when_all([late, handle(5, error=first), handle(1, error=second)])
    for _ in range(2):
        with pytest.raises(RegionFreedError) as caught:
            both.wait()
        assert caught.value is first
    assert late.work.left <= 0


def test_a_timeout_leaves_all_under_way():
    both = when_all([handle(1, "a", known="all"), handle(math.inf)])
    with pytest.raises(RequestTimeoutError) as caught:
        both.wait(timeout_s=0.0)
    assert caught.value.facts["outcome"] == "partial"
    assert not both.done()


def test_the_timeout_is_the_longest():
    assert when_all([handle(1, timeout_s=1.0), handle(1, timeout_s=3.0)]).timeout_s == 3.0
    assert when_all(iter([])).result() == ()


def test_a_handle_is_given_once():
    each = handle(1, "a")
    with pytest.raises(ConfigError, match="twice"):
        when_all([each, each])
    assert when_all([each]).then(len).result() == 1


def test_only_handles_are_taken():
    with pytest.raises(TypeError, match="int"):
        when_all([handle(1), 3])

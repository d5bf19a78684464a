"""Barriers: arrivals that are undone, and those that cannot be."""

from __future__ import annotations

import _thread
import itertools
import threading
import time
from contextlib import ExitStack
from types import SimpleNamespace

import pytest

from smbox import sync
from smbox.errors import (
    ConfigError,
    LayoutMismatchError,
    RegionFreedError,
    RequestTimeoutError,
)
from smbox.memory.kernels import BarrierWord, KernelCode
from smbox.memory.layout import RegionKind
from smbox.paths.pair import PathPair
from smbox.testing.contract_tools import in_threads


def words(box, name):
    (info,) = (info for info in box.regions() if info.name == name)
    assert info.kind == RegionKind.BARRIER
    return box.get(info.address, info.nbytes).view("uint64").tolist()


def test_one_party_never_waits(box):
    assert [box.barrier("one", 1) for _ in range(3)] == [0, 1, 2]


def test_no_party_is_nonsense(box):
    with pytest.raises(ConfigError):
        box.barrier("none", 0)


def test_another_number_of_parties_is_told(box):
    box.barrier("meet", 1)
    with pytest.raises(LayoutMismatchError, match="parties"):
        box.barrier("meet", 2)


def test_a_timeout_takes_the_arrival_back(box):
    with pytest.raises(RequestTimeoutError) as caught:
        box.barrier("late", 2, timeout_s=0.01)
    assert caught.value.facts["outcome"] == "none"
    assert (caught.value.facts["arrived"], caught.value.facts["parties"]) == (1, 2)
    assert words(box, "late")[: BarrierWord.MEMBERS] == [0, 0, 2]


def test_an_interrupt_takes_the_arrival_back(box):
    timer = threading.Timer(0.05, _thread.interrupt_main)
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        box.barrier("late", 2)
    timer.join()
    assert words(box, "late")[BarrierWord.ARRIVED] == 0


def test_an_interrupt_at_any_line_takes_the_arrival_back(box, interrupted):
    """Also an interrupt during the withdrawal after a timeout."""

    def meet():
        with pytest.raises(RequestTimeoutError):
            box.barrier("late", 2, timeout_s=0.0005)

    meet()
    for nth in itertools.count(1):
        _, is_interrupted = interrupted(nth, meet)
        assert words(box, "late")[: BarrierWord.MEMBERS] == [0, 0, 2], nth
        if not is_interrupted:
            break
    assert nth > 50


@pytest.fixture
def before(monkeypatch):
    """``before(kernel, act)``: call ``act`` before a request of this kernel begins."""

    def prepare(kernel, act):
        begin = PathPair.begin

        def acting(paths, request, *result):
            if request.kernel == kernel:
                act()
            return begin(paths, request, *result)

        monkeypatch.setattr(PathPair, "begin", acting)

    return prepare


def test_who_was_met_in_the_last_moment_has_met(box, before):
    """The other party arrives between this one's timeout and its withdrawal."""
    before(KernelCode.WITHDRAW, lambda: in_threads(1, lambda _: box.barrier("close", 2)))
    assert box.barrier("close", 2, timeout_s=0.01) == 0
    assert words(box, "close")[: BarrierWord.MEMBERS] == [1, 0, 2]


def test_an_arrival_that_was_never_sent_has_met_nobody(box, before):
    def unsent():
        raise RequestTimeoutError("it was not sent")

    box.barrier("again", 1)
    before(KernelCode.ARRIVE, unsent)
    with pytest.raises(RequestTimeoutError):
        box.barrier("again", 1)
    assert words(box, "again")[: BarrierWord.MEMBERS] == [1, 0, 1]


def test_an_arrival_that_cannot_be_taken_back_is_told_within_a_second(box, held):
    with pytest.raises(RequestTimeoutError):
        box.barrier("stuck", 2, timeout_s=0.01)
    info = next(info for info in box.regions() if info.name == "stuck")

    class Target:
        pass

    Target.info = info
    begun_s = time.monotonic()
    with held(Target), pytest.raises(RequestTimeoutError) as caught:
        box.barrier("stuck", 2, timeout_s=0.1)
    assert time.monotonic() - begun_s < 2.0  # on a slow machine; 1.0 on others
    assert caught.value.facts["outcome"] == "unknown"


@pytest.mark.parametrize("parties", [sync.PARTIES_MAX + 1, 1 << 40, 1 << 70])
def test_more_parties_than_a_stripe_has_words_for(box, parties):
    with pytest.raises(ConfigError, match=str(sync.PARTIES_MAX)):
        box.barrier("all", parties)
    with pytest.raises(RequestTimeoutError):  # which exist
        box.barrier("all", sync.PARTIES_MAX, timeout_s=0.0)


def test_an_arrival_that_comes_late_but_opens_the_barrier_has_met(box, held, before):
    """The stripe is held at first, so that the arrival is queued; then it takes effect."""
    box.barrier("one", 1)
    info = next(info for info in box.regions() if info.name == "one")
    region = SimpleNamespace(info=info)
    with ExitStack() as stack:
        stack.enter_context(held(region))
        before(KernelCode.WITHDRAW, stack.close)
        assert box.barrier("one", 1, timeout_s=0.01) == 1
    assert words(box, "one")[: BarrierWord.MEMBERS] == [2, 0, 1]


def test_an_arrival_that_fails_meanwhile_tells_its_error(box, held, before):
    """It is queued at a held stripe until the timeout, and the barrier is freed then."""
    with pytest.raises(RequestTimeoutError):
        box.barrier("gone", 2, timeout_s=0.0)
    info = next(info for info in box.regions() if info.name == "gone")
    region = SimpleNamespace(info=info)
    with ExitStack() as stack:
        stack.enter_context(held(region))

        def free():
            stack.close()
            box.free(info)

        before(KernelCode.WITHDRAW, free)
        with pytest.raises(RegionFreedError):
            box.barrier("gone", 2, timeout_s=0.01)

"""Calls of ``acquire`` and ``join`` that fail or are interrupted after they took the place."""

from __future__ import annotations

import os

import pytest

from smbox.errors import LeaseLostError, RequestTimeoutError, TransportError
from smbox.lease import Lease
from smbox.member_record import Record
from smbox.roster import Roster

WAIT_S = 60.0


def lock_of(box, **settings):
    return box.lock("door", **({"lease_s": 0.6, "timeout_s": WAIT_S} | settings))


def failing(error):
    """Return a verb that fails."""

    def fail(*_, **__):
        raise error("the node did not answer")

    return fail


def test_an_acquire_that_fails_half_way_holds_nothing(box, monkeypatch):
    lock = lock_of(box, lease_s=600.0)
    with monkeypatch.context() as during:
        during.setattr(Roster, "write", failing(TransportError))
        with pytest.raises(TransportError):
            lock.acquire()
    assert not lock.is_held
    with lock_of(box):
        pass


def test_a_wait_for_a_lock_goes_on_while_the_node_does_not_answer(box, monkeypatch):
    with lock_of(box), monkeypatch.context() as during:
        during.setattr(box, "attach", failing(RequestTimeoutError))
        with pytest.raises(RequestTimeoutError, match="another Lock object"):
            lock_of(box).acquire(timeout_s=0.05)


def test_an_acquire_whose_record_is_not_answered_has_the_lock(box, monkeypatch):
    """The next renewal writes the record."""
    with monkeypatch.context() as during:
        during.setattr(Roster, "write", failing(RequestTimeoutError))
        lock = lock_of(box, lease_s=600.0)
        assert lock.acquire() == lock.fence == 1
    lock.beat()
    assert lock.holder().pid == os.getpid()


def test_an_acquire_whose_lease_ends_before_it_returns_has_not_the_lock(box, monkeypatch):
    """Nothing is left of it at the box, which calls what is registered when it closes."""
    registered = set()
    monkeypatch.setattr(box, "before_close", lambda key, _: registered.add(key))
    monkeypatch.setattr(box, "not_before_close", registered.remove)
    lock, successor = lock_of(box, lease_s=1e-9), lock_of(box)
    with monkeypatch.context() as during:

        def slow(*_, **__):
            during.undo()
            successor.acquire()

        during.setattr(Roster, "write", slow)
        with pytest.raises(LeaseLostError, match="another process took"):
            lock.acquire()
    assert not lock.is_held
    successor.release()
    assert registered == set()


def test_a_join_that_fails_half_way_holds_nothing(box, join, monkeypatch):
    with monkeypatch.context() as during:
        during.setattr(Roster, "write", failing(RequestTimeoutError))
        with pytest.raises(RequestTimeoutError, match="did not answer"):
            join(box, lease_s=600.0)
    with join(box) as member:
        assert (member.rank, member.count) == (0, 1)


def test_a_join_that_cannot_look_at_the_others_holds_nothing(box, join, monkeypatch):
    write = Roster.write

    def fail(*_arguments, **_settings):
        raise RequestTimeoutError("the node did not answer", op="get", outcome="none")

    def write_and_fail_then(*arguments, **settings):
        write(*arguments, **settings)
        monkeypatch.setattr(Roster, "read", fail)

    with monkeypatch.context() as during:
        during.setattr(Roster, "write", write_and_fail_then)
        with pytest.raises(RequestTimeoutError, match="did not answer"):
            join(box, lease_s=600.0)
    monkeypatch.undo()
    with join(box) as member:
        assert (member.rank, member.count) == (0, 1)


def test_who_is_interrupted_while_acquiring_holds_nothing(box, monkeypatch):
    def interrupted(**_):
        raise KeyboardInterrupt

    first, second = lock_of(box, lease_s=WAIT_S), lock_of(box)
    with monkeypatch.context() as patch:
        patch.setattr(Record, "own", interrupted)
        with pytest.raises(KeyboardInterrupt):
            first.acquire()
    assert not first.is_held
    assert first.holder() is None
    second.acquire(timeout_s=0.0)
    second.release()
    first.acquire(timeout_s=0.0)
    first.release()


def test_who_is_interrupted_right_after_the_take_holds_nothing(box, monkeypatch):
    take, lock = Lease.take, lock_of(box, lease_s=WAIT_S)

    def interrupted(*arguments, **settings):
        assert take(*arguments, **settings)
        raise KeyboardInterrupt

    monkeypatch.setattr(Lease, "take", interrupted)
    with pytest.raises(KeyboardInterrupt):
        lock.acquire()
    assert lock.holder() is None

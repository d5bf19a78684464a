from __future__ import annotations

import numpy as np
import pytest

from smbox.errors import RegionFreedError
from smbox.paths.line import Line
from smbox.paths.link_work import WorkCall
from smbox.wire.codec import Reply, Request
from smbox.wire.ops import Op


class Session:
    """Knows which calls it was given, and which of them were sent."""

    def __init__(self):
        self.queued, self.sent = [], []

    def enqueue(self, call):
        if call not in self.queued + self.sent:
            self.queued.append(call)

    def withdraw(self, call):
        if call not in self.queued:
            return False
        self.queued.remove(call)
        return True

    recall = withdraw

    def line_up_lone(self, call):
        call.offers = 1
        self.sent.append(call)


class Connection:
    def __init__(self):
        self.session = Session()
        self.closed = self.renewed = 0

    def disconnect(self):
        self.closed += 1

    def renew(self):
        self.renewed += 1


class Work:
    """A work of some calls of one unit."""

    def __init__(self, count, error=None):
        self.calls = []
        self.count = count
        self.is_done = False
        self.unseen = self.error = error

    @property
    def has_more(self):
        return len(self.calls) < self.count

    def adopt(self, request):
        self.calls.append(WorkCall(request, 1, work=self, limit=1))
        return self.calls[-1]

    def next_call(self):
        return self.adopt(Request(Op.PUT, payload=memoryview(bytearray(b"abcd"))))

    def open_calls(self):
        return [call for call in self.calls if call.reply is None]

    def collect(self):
        self.is_done = not (self.has_more or self.open_calls())

    def fail(self, error):
        self.is_done, self.unseen = True, error


@pytest.fixture
def line():
    return Line(Connection())


def queued(line):
    return line._connection.session.queued


def begun(line, count):
    """A work of so many calls, of which the first one is queued."""
    work = Work(count)
    line.works.append(work)
    assert line.queue_next()
    return work


def give_out(line):
    """Send what is queued, as the session would."""
    for call in queued(line):
        call.offers = 1
        line._connection.session.sent.append(call)
    queued(line).clear()


def test_works_take_turns_a_call_at_a_time(line):
    first, second = Work(2), Work(1)
    line.works.extend([first, second])
    assert line.queue_next()
    assert not line.queue_next(), "the last one was not given out yet"
    order = [queued(line)[0].work]
    give_out(line)
    while line.queue_next():
        order.append(queued(line)[0].work)
        give_out(line)
    assert order == [first, first, second]


def test_a_work_that_is_done_leaves_and_its_failure_is_kept(line):
    error = RegionFreedError("gone")
    works = [Work(0), Work(0, error), Work(1)]
    line.works.extend(works)
    line.collect_all()
    assert list(line.works) == [works[2]]
    assert line.unseen is error


def test_a_lone_request_is_the_last_one_and_keeps_its_bytes(line):
    mine = np.ones(4, np.uint8)
    work, request = Work(1), Request(Op.PUT, payload=mine.data)
    line.adopt(work, [request])
    mine[:] = 2
    assert bytes(request.payload) == b"\1\1\1\1"
    assert list(line.works) == [work]
    assert line._connection.session.sent == work.calls
    line.works.append(Work(1))
    assert line.queue_next()


def test_several_requests_that_are_under_way_come_in_their_order(line):
    work, requests = Work(2), [Request(Op.GET, 7), Request(Op.GET, 8)]
    line.adopt(work, requests)
    assert [call.request for call in line._connection.session.sent] == requests
    assert list(line.works) == [work]


def test_of_a_work_that_is_done_nothing_is_kept(line):
    work = begun(line, 1)
    work.calls[-1].reply = Reply(Op.PUT)
    line.collect(work)
    assert line._last is None  # nor the arrays of its work


def test_what_was_never_given_out_is_withdrawn_with_its_work(line):
    work = begun(line, 2)
    line.dismiss(work)
    assert not queued(line)
    assert not line.works
    line.works.append(Work(1))
    assert line.queue_next()


def test_borrowed_bytes_are_copied_behind_the_closed_connection(line):
    work = begun(line, 1)
    (call,) = work.calls
    call.is_borrowed = True
    give_out(line)
    line.let_go([call])
    assert line._connection.closed == 1
    assert isinstance(call.request.payload, bytes)
    line.let_go([call])
    assert line._connection.closed == 1


def test_after_an_interrupt_calls_that_the_session_lost_are_queued(line):
    work = Work(2)
    line.works.append(work)
    work.next_call()
    line.resume()
    assert line._connection.closed == 1
    assert queued(line) == work.calls


def test_when_the_session_ends_all_works_do(line):
    works, error = [Work(1), Work(1)], RegionFreedError("gone")
    line.works.extend(works)
    line.queue_next()
    line.end(error)
    assert not line.works
    assert all(work.is_done for work in works)
    assert line.unseen is error
    assert line._connection.renewed == 1


def test_a_recalled_call_holds_nobody_up(line):
    work = begun(line, 2)
    line.recall(work.calls[0])
    assert not queued(line)
    assert line.queue_next()

"""The reports that a coordinator reads: each portion once, and none missed."""

from __future__ import annotations

import pytest

from smbox import Box, Region
from smbox.errors import ConnectError, RequestTimeoutError
from smbox_torch.sandblaster.coordinator_lease import CoordinatorWatch
from smbox_torch.sandblaster.scheduler import PortionScheduler
from smbox_torch.sandblaster.tickets import Tickets

pytestmark = pytest.mark.shares

WAIT_S = 30.0


@pytest.fixture
def begun(node, run):
    """``begun(portions, workers)``: a coordinator in its first round, and the workers."""

    def make(portions, workers):
        scheduler = PortionScheduler(node, run, portions, workers, 3, "float32")
        scheduler.open()
        scheduler.begin()
        return scheduler, [Tickets(node, run, rank, WAIT_S) for rank in range(workers)]

    return make


def deliver(worker, ticket):
    return worker.deliver(ticket, [1.0] * 3, float(ticket.portion))


def test_two_reports_of_a_portion_in_one_round_count_once(begun):
    scheduler, workers = begun(2, 3)
    tickets = [worker.draw() for worker in workers]
    assert [ticket.portion for ticket in tickets] == [0, 1, 0]
    for worker, ticket in zip(workers, tickets, strict=True):
        assert deliver(worker, ticket)
    assert [report.rank for report in scheduler.reports(WAIT_S)] == [0, 1]
    assert (scheduler.added, scheduler.discarded) == ([1, 1, 0], 1)
    scheduler.close()


def test_a_report_that_was_not_advanced_over_is_given_again(begun):
    scheduler, (worker,) = begun(1, 1)
    deliver(worker, worker.draw())
    given = [next(scheduler.reports(WAIT_S)) for _ in range(2)]
    assert given[0] == given[1]
    assert scheduler.added == [0]
    scheduler.close()


def test_a_report_that_comes_right_after_the_look_is_not_missed(begun, monkeypatch):
    scheduler, (worker,) = begun(1, 1)
    ticket, get = worker.draw(), Region.get

    def report_behind(region):
        found = get(region)
        monkeypatch.undo()
        deliver(worker, ticket)
        return found

    monkeypatch.setattr(Region, "get", report_behind)
    assert [report.rank for report in scheduler.reports(0.5)] == [0]
    scheduler.close()


def test_a_node_that_is_slow_while_a_worker_joins_is_asked_again(begun, node, run, monkeypatch):
    scheduler, _ = begun(1, 1)
    attach, silence = node.attach, [RequestTimeoutError("no reply")]

    def attach_late(*args, **options):
        if silence:
            raise silence.pop()
        return attach(*args, **options)

    monkeypatch.setattr(node, "attach", attach_late)
    assert Tickets(node, run, 0, WAIT_S).draw() is not None
    silence.append(RequestTimeoutError("no reply"))
    with pytest.raises(RequestTimeoutError, match="no reply"):
        Tickets(node, run, 0, 0.0)
    scheduler.close()


def test_a_worker_waits_on_while_the_coordinator_lives(node, run, monkeypatch):
    """A round that begins after a poll of the coordinator's lease has a ticket."""
    scheduler = PortionScheduler(node, run, 1, 1, 3, "float32")
    scheduler.open()
    worker, lost = Tickets(node, run, 0, WAIT_S), CoordinatorWatch.lost

    def begin_round(watch):
        monkeypatch.undo()
        scheduler.begin()
        return lost(watch)

    monkeypatch.setattr(CoordinatorWatch, "poll_s", 0.0)
    monkeypatch.setattr(CoordinatorWatch, "lost", begin_round)
    assert worker.draw().portion == 0
    scheduler.close()


def test_workers_stop_though_the_regions_cannot_be_freed(begun, monkeypatch):
    scheduler, (worker,) = begun(1, 1)

    def lose(*_):
        raise ConnectError("no node answers")

    with monkeypatch.context() as patch:
        patch.setattr(Box, "free", lose)
        with pytest.raises(ConnectError):
            scheduler.close()
    assert worker.draw() is None
    scheduler.close()

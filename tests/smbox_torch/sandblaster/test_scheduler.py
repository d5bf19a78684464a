"""Portions are added once each, whoever is slow, does one again, or dies."""

from __future__ import annotations

import uuid
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from smbox import Region
from smbox.errors import (
    ConfigError,
    OutOfMemoryError,
    RegionExistsError,
    RegionNotFoundError,
    RequestTimeoutError,
)
from smbox_torch.sandblaster import tickets
from smbox_torch.sandblaster.scheduler import PortionScheduler
from smbox_torch.sandblaster.shared_state import fetch_add
from smbox_torch.sandblaster.tickets import Tickets

pytestmark = pytest.mark.shares

WAIT_S = 30.0
SIZE = 5


@pytest.fixture
def run(box):
    """``run(portions, workers)``: the coordinator's side, its name, and a sum to add to."""

    def make(portions, workers):
        name = f"work-{uuid.uuid4().hex[:8]}"
        total = box.create(f"{name}.total", shape=SIZE)
        scheduler = PortionScheduler(box, name, portions, workers, SIZE, "float32")
        scheduler.open()
        return scheduler, name, total

    return make


def of(portion):
    """What a portion's gradient is: the sum tells how often each was added."""
    return np.full(SIZE, 10.0**portion, np.float32)


def add_all(portions, total):
    """Add every report; return the losses by portion."""
    losses = {}
    for report in portions.reports(WAIT_S):
        op = "sum" if losses else "replace"
        total.accumulate_from(portions.slots[report.rank], op=op)
        assert report.ticket.portion not in losses
        losses[report.ticket.portion] = report.loss
    return losses


def do(tickets, ticket):
    """Do a portion, unless the run ends while the slot is not free."""
    return tickets.deliver(ticket, of(ticket.portion), float(ticket.portion))


def work(tickets, until):
    """Do portions until the ticket is of a round that is not wanted any more; return that."""
    while (ticket := tickets.draw()) is not None and ticket.round <= until:
        do(tickets, ticket)
    return ticket


def test_a_ticket_of_a_round_that_ended_meanwhile_is_no_portion(run, box, monkeypatch):
    portions, name, _ = run(2, 1)
    worker = Tickets(box, name, 0, WAIT_S)
    for _ in range(2):
        portions.begin()

    def draw_late(words, number):
        monkeypatch.undo()
        value = fetch_add(words, number)
        portions.begin()
        return value

    monkeypatch.setattr(tickets, "fetch_add", draw_late)
    assert worker.draw() == (3, 0)
    portions.close()


def test_a_portion_of_a_round_that_was_given_up_counts_in_no_other(run, box):
    portions, name, _ = run(1, 2)
    late, other = (Tickets(box, name, rank, WAIT_S) for rank in range(2))
    portions.begin()
    given_up = late.draw()
    portions.begin()
    do(late, given_up)
    do(other, other.draw())
    assert [report.rank for report in portions.reports(WAIT_S)] == [1]
    assert (portions.added, portions.discarded) == ([0, 1], 1)
    portions.close()


def test_all_portions_of_every_round_are_added_once(run, box):
    portions, name, total = run(5, 3)
    workers = [Tickets(box, name, rank, WAIT_S) for rank in range(3)]
    with ThreadPoolExecutor(3) as pool:
        ended = [pool.submit(work, tickets, 100) for tickets in workers]
        for _ in range(4):
            portions.begin()
            assert add_all(portions, total) == {p: float(p) for p in range(5)}
            assert total.get().tolist() == [11111.0] * SIZE
        portions.close()
        assert [each.result(WAIT_S) for each in ended] == [None] * 3
    assert sum(portions.added) == 4 * 5


def test_a_portion_of_a_dead_worker_is_done_by_another(run, box):
    portions, name, total = run(3, 2)
    portions.begin()
    dead = Tickets(box, name, 0, WAIT_S)
    ticket = dead.draw()
    dead.slot[:2].put(of(7)[:2])  # killed in the middle of its put
    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(work, Tickets(box, name, 1, WAIT_S), 100)
        assert set(add_all(portions, total)) == {0, 1, 2}
        assert total.get().tolist() == [111.0] * SIZE
        assert portions.added == [0, 3]
        portions.close()
        other.result(WAIT_S)
    assert ticket.portion == 0


def test_a_report_of_a_worker_that_died_behind_it_counts_and_its_successor_goes_on(run, box):
    portions, name, total = run(2, 1)
    portions.begin()
    dead = Tickets(box, name, 0, WAIT_S)
    do(dead, dead.draw())
    heir = Tickets(box, name, 0, WAIT_S)
    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(work, heir, 100)  # waits with its first put until 0 is added
        assert add_all(portions, total) == {0: 0.0, 1: 1.0}
        portions.close()
        other.result(WAIT_S)
    assert total.get().tolist() == [11.0] * SIZE


def test_a_worker_that_was_interrupted_behind_its_report_goes_on(run, box, monkeypatch):
    portions, name, total = run(2, 1)
    worker = Tickets(box, name, 0, WAIT_S)
    portions.begin()
    put = Region.put

    def interrupt(region, *args):
        put(region, *args)
        if region.shape[1:] == (2,):
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Region, "put", interrupt)
        with pytest.raises(KeyboardInterrupt):
            do(worker, worker.draw())
    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(work, worker, 100)
        assert add_all(portions, total) == {0: 0.0, 1: 1.0}
        portions.close()
        other.result(WAIT_S)
    assert total.get().tolist() == [11.0] * SIZE


def test_a_report_that_comes_late_is_not_added(run, box):
    portions, name, total = run(2, 2)
    slow, fast = (Tickets(box, name, rank, WAIT_S) for rank in range(2))
    portions.begin()
    late = slow.draw()
    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(work, fast, 1)  # its last ticket is the next round's
        add_all(portions, total)
        do(slow, late)
        portions.begin()
        do(fast, other.result(WAIT_S))
        left = slow.draw()
        do_later = pool.submit(do, slow, left)
        assert set(add_all(portions, total)) == {0, 1}
        do_later.result(WAIT_S)
    assert total.get().tolist() == [11.0] * SIZE
    assert (portions.added, portions.discarded) == ([1, 3], 1)


def test_a_name_whose_run_has_ended_can_be_used_again(run, box, names_of):
    portions, name, total = run(2, 1)
    for _ in range(2):
        portions.begin()
        tickets = Tickets(box, name, 0, WAIT_S)
        with ThreadPoolExecutor(1) as pool:
            done = pool.submit(work, tickets, 100)
            add_all(portions, total)
            portions.close()
            done.result(WAIT_S)
        assert total.get().tolist() == [11.0] * SIZE
        portions.close()
        assert names_of(box, name) == [f"{name}.total"]
        portions = PortionScheduler(box, name, 2, 1, SIZE, "float32")
        portions.open()


def test_silence_is_a_timeout_on_both_sides(run, box):
    portions, name, _ = run(1, 1)
    with pytest.raises(RequestTimeoutError):
        Tickets(box, name, 0, 0.05).draw()  # no round has begun
    portions.begin()
    with pytest.raises(RequestTimeoutError):
        next(portions.reports(0.05))
    tickets = Tickets(box, name, 0, 0.05)
    ticket = tickets.draw()
    assert do(tickets, ticket)
    with pytest.raises(RequestTimeoutError):
        do(tickets, ticket)  # the slot still holds what was not taken


def test_what_makes_no_sense_is_refused(run, box, names_of):
    _, name, _ = run(1, 2)
    for rank in (-1, 2):
        with pytest.raises(ConfigError, match="rank"):
            Tickets(box, name, rank, WAIT_S)
    for portions, workers in ((0, 1), (1, 0), (1 << 32, 1), (1.5, 1), (1, True), (1, "2")):
        with pytest.raises((ConfigError, TypeError), match=r"portions|workers"):
            PortionScheduler(box, f"{name}-again", portions, workers, SIZE, "float32")
    for lease_s in (0, -1.0, float("nan"), float("inf")):
        with pytest.raises(ConfigError, match="lease_s"):
            PortionScheduler(box, f"{name}-again", 1, 1, SIZE, "float32", lease_s=lease_s)
    assert not names_of(box, f"{name}-again")


def test_what_cannot_be_made_leaves_nothing(run, box, names_of):
    name = f"work-{uuid.uuid4().hex[:8]}"
    for word in ("slot1", "reports"):
        other = box.create(f"{name}.{word}", 1)
        with pytest.raises(RegionExistsError):
            PortionScheduler(box, name, 2, 2, SIZE, "float32")
        assert names_of(box, name) == [f"{name}.{word}"]
        box.free(other)
    other = box.create(f"{name}.board", 1)
    portions = PortionScheduler(box, name, 2, 2, SIZE, "float32")
    with pytest.raises(RegionExistsError):
        portions.open()
    portions.close()
    assert names_of(box, name) == [f"{name}.board"]
    box.free(other)
    with pytest.raises(OutOfMemoryError):
        PortionScheduler(box, name, 1, 64, 10_000_000, "float32")
    assert not names_of(box, name)


def test_a_worker_learns_of_the_end_wherever_it_is(run, box, names_of):
    portions, name, _ = run(2, 3)
    waiting, holding, late = (Tickets(box, name, rank, WAIT_S) for rank in range(3))
    with ThreadPoolExecutor(1) as pool:
        drawn = pool.submit(waiting.draw)  # there is no round yet
        portions.begin()
        ticket = drawn.result(WAIT_S)
        assert do(waiting, ticket)
        blocked = pool.submit(do, waiting, ticket)  # until its report is read
        mine = holding.draw()
        portions.close()
        assert blocked.result(WAIT_S) is False
    assert do(holding, mine) is False
    assert late.draw() is None
    with pytest.raises(RegionNotFoundError):
        Tickets(box, name, 2, 0.05)
    portions.close()
    assert names_of(box, name) == [f"{name}.total"]


def test_a_worker_without_a_coordinator_is_told(node):
    with pytest.raises(RegionNotFoundError):
        Tickets(node, "nobody", 0, 0.05)


def test_idle_workers_repeat_different_portions(run, box):
    portions, name, _ = run(4, 3)
    dead, *idle = (Tickets(box, name, rank, WAIT_S) for rank in range(3))
    portions.begin()
    assert [dead.draw().portion for _ in range(4)] == [0, 1, 2, 3]
    assert [each.draw().portion for each in idle] == [0, 1]
    portions.close()


def test_regions_freed_by_a_node_that_stops_are_no_end(run, box, monkeypatch):
    portions, name, _ = run(1, 1)
    worker = Tickets(box, name, 0, WAIT_S)
    portions.begin()
    ticket = worker.draw()
    portions.close()
    monkeypatch.setattr(type(box), "stats", lambda _: {}["no node answers"])
    for work_on in (worker.draw, lambda: do(worker, ticket)):
        with pytest.raises(KeyError, match="no node"):
            work_on()

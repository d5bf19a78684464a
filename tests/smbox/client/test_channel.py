"""The channel against a real node: faults, interrupts, timeouts, restarts, threads."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest

from smbox.errors import PeerLostError, RegionFreedError
from smbox.memory.kernels import KernelCode
from smbox.memory.segment import listing
from smbox.testing.faults import FaultScript
from smbox.wire.codec import decode_request
from smbox.wire.header import LONG_NBYTES_MAX
from smbox.wire.ops import Op

WAIT_S = 30.0
PIECE = LONG_NBYTES_MAX // 4  # float32 elements: the longest request there is


class OldBytes:
    """A sink that keeps what it was given, and how often."""

    def __init__(self):
        self.pieces = []

    def __call__(self, first, limit, old):
        if (first, limit) not in [piece[:2] for piece in self.pieces]:
            self.pieces.append((first, limit, old.tobytes()))

    def array(self):
        return np.frombuffer(b"".join(piece[2] for piece in self.pieces), np.float32)


FAULTS = {
    "a request is lost": FaultScript.drop,
    "a request comes twice": FaultScript.duplicate,
    "a request comes late": FaultScript.delay,
    "the line breaks": FaultScript.cut,
}


@pytest.mark.parametrize("op", [Op.ACCUMULATE, Op.FETCH, Op.ELASTIC], ids=lambda op: op.name)
@pytest.mark.parametrize("side", ["request", "reply"])
@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS.keys())
def test_every_change_happens_once_whatever_messages_suffer(node, clients, fault, side, op):
    script = FaultScript()
    fault(script, op, nth=2, side=side)
    client = clients(script.around(node.connect))
    info = client.create(3 * PIECE)
    x = np.ones(3 * PIECE, np.float32)
    expected = np.zeros(3 * PIECE, np.float32)
    kernel = KernelCode.ELASTIC if op is Op.ELASTIC else KernelCode.SUM
    for _ in range(3):
        sink = None if op is Op.ACCUMULATE else OldBytes()
        client.finish(client.change(info, x, kernel, 0.5, sink=sink))
        if sink is not None:
            assert np.array_equal(sink.array(), expected)
        expected += 0.5 * (x - expected) if op is Op.ELASTIC else 0.5 * x
    assert np.array_equal(client.get(info), expected)
    assert script.is_over()


@pytest.mark.parametrize("op", [Op.HELLO, Op.GET], ids=lambda op: op.name)
@pytest.mark.parametrize("side", ["request", "reply"])
@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS.keys())
def test_greetings_and_reads_get_through(node, clients, fault, side, op):
    script = FaultScript()
    fault(script, op, side=side)
    client = clients(script.around(node.connect))
    info = client.create(PIECE, init=3)
    for _ in range(2):
        assert (client.get(info) == 3).all()
    assert script.is_over()


def test_an_interrupt_in_waiting_loses_and_doubles_nothing_at_any_line(client, interrupted):
    info = client.create(PIECE + 4)  # two requests
    x = np.ones(PIECE + 4, np.float32)
    lines, was_struck, total = 0, True, 0
    while was_struck:
        lines += 3 if lines > 150 else 1  # all of the way there, then samples
        sink = OldBytes()
        work = client.change(info, x, sink=sink)
        _, was_struck = interrupted(lines, lambda w=work: client.finish(w))
        client.finish(work)
        assert (sink.array() == total).all(), lines
        total += 1
    assert lines > 100
    assert (client.get(info) == total).all()


@pytest.mark.parametrize(("op", "count"), [(Op.GET, 4), (Op.LEND, 8), (Op.ACCUMULATE, 2)])
def test_the_window_is_full_and_never_more(node, clients, op, count):
    client = clients(lend_from_nbytes=1 if op is Op.LEND else float("inf"))
    info = client.create(40 * PIECE)
    out = np.empty(40 * PIECE, np.float32)
    client.get(info)
    node.is_down = True
    sent = []
    node.hub.deliver = lambda connection, frames: sent.append(frames) if frames else None
    read = client.read, (info, out)
    begin, arguments = (client.change, (info, out)) if op is Op.ACCUMULATE else read
    client.begun(begin(*arguments))
    assert [decode_request(frames).op for frames in sent] == [op] * count


def test_a_restarted_node_goes_on_where_it_was(node, client):
    info = client.create(2 * PIECE)
    x = np.ones(2 * PIECE, np.float32)
    client.finish(client.change(info, x))
    node.is_down = True
    sink = OldBytes()
    work = client.change(info, x, sink=sink)
    assert not work.advance(0.0)
    node.restart()
    node.is_down = False
    client.finish(work)
    assert (sink.array() == 1).all()
    assert (client.get(info) == 2).all()
    assert client.control.node.incarnation >= 1


def test_a_silent_client_comes_back_to_a_node_that_forgot_it(node, client, monkeypatch):
    monkeypatch.setattr("smbox.client.connection.IDLE_S", 0.0)
    info = client.create(PIECE)
    x = np.ones(PIECE, np.float32)
    client.finish(client.change(info, x))
    node.node.tick(now_s=time.monotonic() + 1000)
    client.finish(client.change(info, x))
    assert (client.get(info) == 2).all()


def test_a_refusal_moves_later_changes_up(client):
    gone, info = client.create(PIECE), client.create(PIECE)
    client.control.free(gone.address, WAIT_S)
    x = np.ones(PIECE, np.float32)
    refused = client.change(gone, x)
    later = client.change(info, x)
    client.finish(later)
    for _ in range(2):
        with pytest.raises(RegionFreedError):
            refused.advance(time.monotonic() + WAIT_S)
    assert (client.get(info) == 1).all()


def test_flush_tells_of_a_failure_that_nobody_waited_for_once(client):
    gone = client.create(PIECE)
    client.control.free(gone.address, WAIT_S)
    client.change(gone, np.ones(PIECE, np.float32))
    with pytest.raises(RegionFreedError):
        client.data.flush(time.monotonic() + WAIT_S)
    assert client.data.flush(time.monotonic() + WAIT_S)


def test_flush_tells_of_each_failure_of_a_lost_session(node, client):
    """They fail with one error: a caller that waits for one change learns of no other."""
    info, ones = client.create(PIECE), np.ones(PIECE, np.float32)
    node.is_down = True
    waited, _ = [client.change(info, ones) for _ in range(2)]
    node.restart(unlink=True)
    node.is_down = False
    for _ in range(2):
        with pytest.raises(PeerLostError):
            waited.advance(time.monotonic() + WAIT_S)
    with pytest.raises(PeerLostError):
        client.data.flush(time.monotonic() + WAIT_S)
    assert client.data.flush(time.monotonic() + WAIT_S)


def test_any_thread_may_drive(client):
    info = client.create(20 * PIECE)
    x = np.ones(20 * PIECE, np.float32)
    works = [client.change(info, x) for _ in range(2)]
    threads = [threading.Thread(target=client.finish, args=(work,)) for work in works * 2]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)
    assert (client.get(info) == 2).all()


def test_closing_ends_what_is_under_way_and_says_goodbye(node, clients, caplog):
    client = clients()
    info = client.create(PIECE)
    client.get(info)
    work = client.change(info, np.ones(PIECE, np.float32))
    client.close()
    assert "before all changes were done" in caplog.text
    with pytest.raises(PeerLostError):
        work.advance(time.monotonic() + WAIT_S)
    assert Op.BYE in [decode_request(frames).op for frames in node.seen]
    assert len(node.memory.channels.rows()) == 0
    client.close()


def test_a_close_that_the_node_does_not_hear_leaves_row_and_ring(node, clients, caplog):
    client = clients()
    info = client.create(4)
    client.finish(client.change(info, np.ones(4, np.float32), sink=OldBytes()))
    rows, used_nbytes = len(node.memory.channels.rows()), node.memory.used_nbytes()
    node.is_down = True
    client.close()
    assert caplog.text == ""
    assert (len(node.memory.channels.rows()), node.memory.used_nbytes()) == (rows, used_nbytes)
    assert any(".ring" in name for name in listing(f"smbox.{node.name}."))

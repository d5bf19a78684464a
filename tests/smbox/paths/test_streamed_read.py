"""Long reads that somebody waits for: ahead of the line, and in it where that cannot be."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from smbox.errors import PeerLostError, RegionFreedError
from smbox.memory.layout import STRIPE_NBYTES, Stripe
from smbox.paths import lent_read, link, read_stream
from smbox.paths.read_stream import FAST_NBYTES
from smbox.testing.faults import FaultScript
from smbox.wire.codec import decode_request
from smbox.wire.header import LONG_NBYTES_MAX
from smbox.wire.ops import Op

WAIT_S = 30.0
NBYTES = 4 * LONG_NBYTES_MAX + 12
LENT = NBYTES // FAST_NBYTES - 2  # the end is read as copies
READS = [Op.LEND] * LENT + [Op.GET] * 3 + [Op.STAMPS]


@pytest.fixture(autouse=True)
def short(monkeypatch):
    """Reads of 8 MiB are long enough to have an end of their own, and always fast."""
    monkeypatch.setattr(lent_read, "COPIED_FROM_NBYTES", 2 * LONG_NBYTES_MAX)
    monkeypatch.setattr(read_stream, "FAST_NBYTES_S", 0.0)


@pytest.fixture
def client(clients):
    return clients(lend_from_nbytes=2 * LONG_NBYTES_MAX)


@pytest.fixture
def filled(node, client):
    """A region with contents; the node has greeted the client's channel."""
    return fill(node, client)


def fill(node, client, nbytes=NBYTES):
    info = client.create(nbytes // 4)
    x = np.arange(nbytes // 4, dtype=np.float32)
    client.finish(client.change(info, x))
    node.seen.clear()
    return info, x


def begin(client, info, out, first=0):
    return client.data.read_now(info, first, first + out.nbytes, client.as_bytes(out))


def read(client, info):
    out = np.full(info.shape, -1, np.float32)
    work = begin(client, info, out)
    client.finish(work)
    assert not client.data._link()._line.works
    return out


def requests(node):
    found = map(decode_request, node.seen)
    return [each for each in found if each.op in {Op.GET, Op.LEND, Op.STAMPS}]


def ops(node):
    return [each.op for each in requests(node)]


def at_the(nth, op, node, monkeypatch, act):
    """Do something when the nth request of ``op`` arrives, before it is answered."""
    handle, seen = node._handle, []

    def watched(connection, frames):
        if frames and decode_request(frames).op is op:
            seen.append(op)
            if len(seen) == nth:
                act()
        return handle(connection, frames)

    monkeypatch.setattr(node.hub, "_handler", watched)


def change(node, info, *stripes):
    """Change stripes as a local client would."""
    region = node.memory.regions[int(info.address)]
    for stripe in stripes:
        region.table[stripe, Stripe.SEQ] += 2
        region.data[stripe * STRIPE_NBYTES : (stripe + 1) * STRIPE_NBYTES] = 7


def test_nothing_is_sent_before_somebody_waits(node, client, filled):
    begin(client, filled[0], np.empty(filled[0].shape, np.float32))
    assert ops(node) == []


def test_a_quiet_region_is_read_ahead_of_the_line(node, client, filled):
    info, x = filled
    answered = client.data._link().answered
    assert np.array_equal(read(client, info), x)
    assert ops(node) == READS
    assert {each.nbytes for each in requests(node)[:LENT]} == {FAST_NBYTES}
    assert client.data._link().answered == answered + len(READS)


def test_where_bytes_come_slowly_requests_are_larger(node, client, filled, monkeypatch):
    info, x = filled
    monkeypatch.setattr(read_stream, "FAST_NBYTES_S", 1e15)
    read(client, info)
    node.seen.clear()
    assert np.array_equal(read(client, info), x)
    assert {each.nbytes for each in requests(node)[: LENT // 2]} == {LONG_NBYTES_MAX}
    assert ops(node) == READS[LENT // 2 :]


def test_in_line_requests_are_larger(client, filled):
    work = begin(client, filled[0], np.empty(filled[0].shape, np.float32))
    work.stream(FAST_NBYTES)
    assert work.part_from(0).limit == FAST_NBYTES
    assert work.next_call().limit == LONG_NBYTES_MAX


def test_a_part_is_read_at_its_place(node, client, filled):
    info, x = filled
    first = FAST_NBYTES - 8
    out = np.empty((NBYTES - first - 16) // 4, np.float32)
    client.finish(begin(client, info, out, first))
    assert np.array_equal(out, x[first // 4 :][: out.size])


def test_what_was_changed_before_the_look_is_read_again(node, client, filled, monkeypatch):
    info, x = filled
    at_the(1, Op.STAMPS, node, monkeypatch, lambda: change(node, info, 5))
    wanted = x.copy()
    wanted.view(np.uint8)[5 * STRIPE_NBYTES : 6 * STRIPE_NBYTES] = 7
    assert np.array_equal(read(client, info), wanted)
    assert ops(node) == READS + [Op.GET] * 2  # a piece of 2 MiB


@pytest.mark.parametrize("stripe", [0, 3])
def test_what_was_changed_between_two_loans_of_a_piece_is_read_again(
    node, client, filled, monkeypatch, stripe
):
    info, x = filled
    at_the(2, Op.LEND, node, monkeypatch, lambda: change(node, info, stripe))
    wanted = x.copy()
    wanted.view(np.uint8)[stripe * STRIPE_NBYTES : (stripe + 1) * STRIPE_NBYTES] = 7
    assert np.array_equal(read(client, info), wanted)
    again = [Op.GET] * 2 if stripe == 0 else []  # 3 was lent after that
    assert ops(node) == READS + again


def test_what_is_copied_at_the_end_needs_no_look(node, client, filled, monkeypatch):
    info, x = filled
    last = NBYTES // STRIPE_NBYTES - 1
    at_the(1, Op.STAMPS, node, monkeypatch, lambda: change(node, info, last))
    assert np.array_equal(read(client, info), x)
    assert ops(node) == READS


@pytest.mark.parametrize(
    ("op", "nth"),
    [(Op.LEND, 1), (Op.LEND, 3), (Op.LEND, LENT), (Op.GET, 1), (Op.GET, 3), (Op.STAMPS, 1)],
)
def test_a_node_that_falls_silent_is_waited_for_in_line(
    node, client, filled, monkeypatch, op, nth
):
    info, x = filled
    at_the(nth, op, node, monkeypatch, lambda: setattr(node, "is_down", True))
    out = np.empty(info.shape, np.float32)
    work = begin(client, info, out)
    assert not work.advance(time.monotonic() + 0.05)
    assert work.outcome() in {"not-sent", "partial"}
    assert work.ranges_done() == []
    node.is_down = False
    client.finish(work)
    assert np.array_equal(out, x)
    lent = [each for each in requests(node) if each.op is Op.LEND]  # each once, or again
    assert len({each.request for each in lent}) == len({each.address for each in lent})


def test_what_stands_in_line_comes_first(node, client, filled):
    info, x = filled
    adding = client.change(info, x)
    assert np.array_equal(read(client, info), 2 * x)
    assert adding.is_done


def test_what_comes_later_waits(node, client, filled):
    info, x = filled
    out = np.empty(info.shape, np.float32)
    work = begin(client, info, out)
    node.is_down = True
    assert not work.advance(time.monotonic() + 0.05)
    node.is_down = False
    client.finish(client.change(info, x))
    client.finish(work)
    assert np.array_equal(out, x)


def test_without_time_it_stands_in_line(node, client, filled):
    info, x = filled
    out = np.empty(info.shape, np.float32)
    work = begin(client, info, out)
    node.is_down, begun_s = True, time.monotonic()
    assert not work.advance(0.0)
    assert time.monotonic() - begun_s < 5.0
    node.is_down = False
    assert list(client.data._link()._line.works) == [work]
    client.finish(work)
    assert np.array_equal(out, x)


def test_a_long_one_lets_others_in_between(node, client, filled, monkeypatch):
    info, x = filled
    monkeypatch.setattr(link, "STREAM_S", 1e-4)
    slices, stream = [], client.data._link()._stream

    def noted(work, deadline_s):
        slices.append(work)
        return stream(work, deadline_s)

    monkeypatch.setattr(client.data._link(), "_stream", noted)
    assert np.array_equal(read(client, info), x)
    assert len(slices) > 1
    assert ops(node) == READS


def test_a_box_that_is_closed_meanwhile_is_an_error(node, client, filled, monkeypatch):
    info, _ = filled
    monkeypatch.setattr(link, "STREAM_S", 1e-4)
    closing = threading.Thread(target=client.data._link().close)
    at_the(2, Op.LEND, node, monkeypatch, closing.start)
    monkeypatch.setattr(link, "HANDOVER_S", 0.2)
    with pytest.raises(PeerLostError):
        read(client, info)
    closing.join(WAIT_S)


def test_a_region_that_is_freed_meanwhile_is_an_error(node, client, filled, monkeypatch):
    info, _ = filled
    at_the(3, Op.LEND, node, monkeypatch, lambda: node.node._registry.free(int(info.address)))
    with pytest.raises(RegionFreedError):
        read(client, info)
    assert len({each.request for each in requests(node)}) == len(requests(node))  # no patience
    other, x = fill(node, client)
    assert np.array_equal(read(client, other), x)  # the link goes on


@pytest.mark.parametrize("op", [Op.LEND, Op.STAMPS])
def test_after_a_restart_of_the_node_all_is_there(node, client, filled, monkeypatch, op):
    info, x = filled
    at_the(1, op, node, monkeypatch, node.restart)
    assert np.array_equal(read(client, info), x)


@pytest.mark.parametrize("side", ["request", "reply"])
@pytest.mark.parametrize("fault", ["drop", "duplicate", "delay", "cut"])
@pytest.mark.parametrize("op", [Op.LEND, Op.GET, Op.STAMPS])
def test_all_is_there_whatever_messages_suffer(node, clients, op, fault, side):
    script = FaultScript()
    client = clients(script.around(node.connect), lend_from_nbytes=2 * LONG_NBYTES_MAX)
    info, x = fill(node, client)
    getattr(script, fault)(op, nth=1 if op is Op.STAMPS else 2, side=side)
    for _ in range(3):
        assert np.array_equal(read(client, info), x)
    assert script.is_over()


def test_an_interrupt_at_any_line_leaves_a_link_that_works(node, clients, interrupted):
    client = clients(lend_from_nbytes=2 * LONG_NBYTES_MAX)
    info, x = fill(node, client, 2 * LONG_NBYTES_MAX + 12)
    lines, was_struck = 0, True
    while was_struck:
        lines += 1
        out = np.empty(info.shape, np.float32)
        work = begin(client, info, out)
        _, was_struck = interrupted(lines, lambda w=work: client.finish(w))
        if was_struck and lines % 2:  # the verb gives it up
            work.cancel()
            out[:] = -1
        else:
            client.finish(work)
        assert np.array_equal(read(client, info), x), lines
        assert np.array_equal(out, np.full_like(x, -1) if was_struck and lines % 2 else x), (
            lines
        )
    assert lines > 100


def test_threads_have_streams_of_their_own(node, client, filled):
    info, x = filled
    with ThreadPoolExecutor(3) as threads:
        found = list(threads.map(lambda _: read(client, info), range(15)))
    assert all(np.array_equal(each, x) for each in found)
    assert ops(node).count(Op.STAMPS) == 15

from __future__ import annotations

import threading
import time

import numpy as np
import pytest

from smbox.errors import RegionFreedError
from smbox.memory.kernels import KernelCode
from smbox.memory.layout import STRIPE_NBYTES
from smbox.paths.remote_now import LONE_NBYTES_MAX, is_lone
from smbox.testing.faults import FaultScript
from smbox.wire.codec import decode_request
from smbox.wire.ops import Op

WAIT_S = 30.0
COUNT = 8
ONES = np.ones(COUNT, np.float32)


@pytest.fixture
def info(client):
    made = client.create(COUNT)
    client.get(made)  # the node has greeted
    return made


def add_now(client, info, x=ONES, kernel=KernelCode.SUM):
    return client.data.change_now(info, client.operation(x, kernel), None)


def get_now(client, info):
    out = np.empty(info.shape, info.dtype.numpy)
    work = client.data.read_now(info, 0, info.nbytes, client.as_bytes(out))
    if work is not None:
        client.finish(work)
    return out


def works_in_line(client):
    return list(client.data._link()._line.works)


def test_what_is_lone():
    assert is_lone(0, 1)
    assert is_lone(STRIPE_NBYTES - LONE_NBYTES_MAX, STRIPE_NBYTES)
    assert not is_lone(4, 4)
    assert not is_lone(0, LONE_NBYTES_MAX + 1)
    assert not is_lone(STRIPE_NBYTES - 4, STRIPE_NBYTES + 4)


def test_a_small_change_and_a_small_read_are_done_at_once(node, client, info):
    node.seen.clear()
    assert add_now(client, info) is None
    out = np.empty(COUNT, np.float32)
    assert client.data.read_now(info, 0, info.nbytes, client.as_bytes(out)) is None
    assert (out == 1).all()
    assert [decode_request(frames).op for frames in node.seen] == [Op.ACCUMULATE, Op.GET]
    assert client.data._link().answered >= 2


def test_what_stands_in_line_comes_first(node, client, info):
    node.is_down = True
    first = client.change(info, ONES)
    node.is_down = False
    second = add_now(client, info, 5 * ONES, KernelCode.MAX)
    assert works_in_line(client) == [first, second]
    client.finish(second)
    assert first.is_done
    assert (get_now(client, info) == 5).all()


def test_one_that_is_not_answered_soon_stands_in_line_and_is_done_once(node, client, info):
    node.is_down = True
    x = ONES.copy()
    work = add_now(client, info, x)
    assert work.outcome() == "unknown"
    assert not work.advance(0.0)
    x[:] = 7  # it was copied
    later = client.change(info, ONES)
    node.is_down = False
    client.finish(work)
    client.finish(later)
    assert (get_now(client, info) == 2).all()
    assert works_in_line(client) == []


def test_a_read_that_is_not_answered_soon_goes_on(node, client, info):
    node.is_down = True
    out = np.empty(COUNT, np.float32)
    work = client.data.read_now(info, 0, info.nbytes, client.as_bytes(out))
    node.is_down = False
    client.finish(work)
    assert (out == 0).all()


def test_a_refusal_is_raised_by_the_work(client, info):
    client.control.free(info.address, WAIT_S)
    work = add_now(client, info)
    with pytest.raises(RegionFreedError):
        work.advance(time.monotonic() + WAIT_S)
    reading = client.data.read_now(info, 0, 4, np.empty(4, np.uint8))
    with pytest.raises(RegionFreedError):
        reading.advance(time.monotonic() + WAIT_S)
    assert works_in_line(client) == []


def test_after_a_restart_of_the_node_it_greets_first(node, client, info):
    add_now(client, info)
    node.restart()
    work = add_now(client, info)
    if work is not None:
        client.finish(work)
    assert (get_now(client, info) == 2).all()


@pytest.mark.parametrize("side", ["request", "reply"])
@pytest.mark.parametrize("fault", ["drop", "duplicate", "delay", "cut"])
def test_every_small_change_happens_once_whatever_messages_suffer(node, clients, fault, side):
    script = FaultScript()
    getattr(FaultScript, fault)(script, Op.ACCUMULATE, nth=2, side=side)
    client = clients(script.around(node.connect))
    info = client.create(COUNT)
    client.get(info)
    for count in range(1, 5):
        work = add_now(client, info)
        if work is not None:
            client.finish(work)
        assert (get_now(client, info) == count).all()
    assert script.is_over()


@pytest.mark.parametrize("is_slow", [False, True], ids=["answered", "not answered soon"])
def test_an_interrupt_at_any_line_leaves_whole_numbers(
    node, client, info, interrupted, is_slow
):
    lines, was_struck, least, most = 0, True, 0, 0
    while was_struck:
        lines += 1
        x = ONES.copy()
        node.is_down = is_slow
        work, was_struck = interrupted(lines, lambda x=x: add_now(client, info, x))
        node.is_down = False
        x[:] = 100  # nobody may look at it any more
        if work is not None:
            client.finish(work)
        most += 1
        least += not was_struck
        work = add_now(client, info)  # the link is not wedged
        if work is not None:
            client.finish(work)
        most, least = most + 1, least + 1
        found = get_now(client, info)
        assert (found == found[0]).all()
        assert least <= found[0] <= most, lines
        least = most = int(found[0])
    assert lines > 40


def test_an_interrupt_at_any_line_of_a_read_changes_nothing(client, info, interrupted):
    add_now(client, info)
    lines, was_struck = 0, True
    while was_struck:
        lines += 1
        _, was_struck = interrupted(lines, lambda: get_now(client, info))
        assert (get_now(client, info) == 1).all()
    assert lines > 30


@pytest.mark.parametrize("is_heard", [False, True], ids=["no answer", "a late answer"])
def test_after_an_interrupt_nobody_writes_to_the_callers_array(
    node, client, info, interrupted, is_heard
):
    lines, was_struck, written = 0, True, []
    while was_struck:
        lines += 1
        out = np.empty(COUNT, np.float32)
        node.is_down = True
        arguments = info, 0, info.nbytes, client.as_bytes(out)
        work, was_struck = interrupted(lines, lambda a=arguments: client.data.read_now(*a))
        node.is_down = False
        if work is None:
            out[:] = 99
        if is_heard:
            client.data.flush(time.monotonic() + WAIT_S)
        assert (get_now(client, info) == 0).all()
        if work is None:
            written += [] if (out == 99).all() else [lines]
        else:
            client.finish(work)
            assert (out == 0).all()
    assert lines > 60
    handing_over = range(lines - 5, lines)  # the work, to the verb, which cancels it
    assert set(written) <= set(handing_over)


def test_threads_have_lone_requests_of_their_own(client, info):
    def add_many():
        for _ in range(50):
            work = add_now(client, info)
            if work is not None:
                client.finish(work)

    threads = [threading.Thread(target=add_many) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)
    assert (client.get(info) == 150).all()

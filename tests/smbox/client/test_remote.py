from __future__ import annotations

import contextlib
import gc
import os
import signal
import threading
import time
import weakref

import numpy as np
import pytest

from smbox.errors import PeerLostError, RegionFreedError, RequestTimeoutError
from smbox.memory.kernels import KernelCode
from smbox.wire.codec import decode_request
from smbox.wire.header import LONG_NBYTES_MAX
from smbox.wire.messages import Hello
from smbox.wire.ops import Op

WAIT_S = 30.0
PIECE = LONG_NBYTES_MAX // 4


def channels(node):
    requests = [decode_request(frames) for frames in node.seen]
    return {r.body.channel for r in requests if r.op is Op.HELLO and isinstance(r.body, Hello)}


def test_the_transport_is_named(client):
    assert client.data.transport == "inproc"
    assert client.data.view(client.create(4), 0, 4) is None


def test_versions_count_commits(client):
    info = client.create(4)
    before = client.data.version(info, WAIT_S)
    client.finish(client.change(info, np.ones(4, np.float32)))
    assert client.data.version(info, WAIT_S) == before + 1
    client.control.free(info.address, WAIT_S)
    with pytest.raises(RegionFreedError):
        client.data.version(info, WAIT_S)


@pytest.mark.parametrize("verb", ["put", "accumulate"])
def test_a_narrow_operand_travels_in_its_own_type(node, boxes, verb):
    region = boxes().create("w", shape=(4,))
    getattr(region, verb)(np.ones(4, np.float16))
    sent = [decode_request(frames) for frames in node.seen]
    (change,) = [each for each in sent if each.op in {Op.PUT, Op.ACCUMULATE}]
    assert len(change.payload) == 8
    assert (region.get() == 1).all()


def test_a_threads_operations_take_effect_in_order(client):
    info = client.create(1 << 20)
    x, out = np.ones(1 << 20, np.float32), np.empty(1 << 20, np.float32)
    client.change(info, x)
    client.change(info, 4 * x, KernelCode.MAX)
    reading = client.read(info, out)
    client.finish(reading)
    client.finish(client.data.start(client.operation(info, x)))
    assert (out == 4).all()
    assert client.data.flush(time.monotonic() + WAIT_S)
    assert (client.get(info) == 5).all()


def in_thread(function):
    thread = threading.Thread(target=function)
    thread.start()
    thread.join(WAIT_S)


def test_each_living_thread_has_its_channel_and_dead_ones_leave_theirs(node, client):
    info = client.create(4)
    client.get(info)
    for _ in range(3):
        in_thread(lambda: client.get(info))
    assert channels(node) == {0, 1, 2}


def test_a_new_thread_takes_over_a_channel_whose_replies_have_come(node, client):
    info, ones = client.create(4), np.ones(4, np.float32)
    for _ in range(3):
        in_thread(lambda: client.change(info, ones))
    assert len(channels(node)) == 2
    assert (client.get(info) == 3).all()


def test_flush_completes_what_other_threads_began(client):
    info = client.create(1 << 20)
    x = np.ones(1 << 20, np.float32)
    in_thread(lambda: client.change(info, x))
    assert client.data.flush(time.monotonic() + WAIT_S)
    assert (client.get(info) == 1).all()


def test_flush_does_not_wait_for_who_waits(client):
    """A change that another thread began before its wait is committed all the same."""
    info, threads = client.create(4), []

    def change_and_wait():
        client.change(info, np.ones(4, np.float32))
        with contextlib.suppress(RegionFreedError):  # the end of the test
            client.data.wait_version(info, 1000).advance(time.monotonic() + WAIT_S)

    for _ in range(8):
        threads.append(threading.Thread(target=change_and_wait))
        threads[-1].start()
    try:
        while client.data.version(info, WAIT_S) < len(threads):
            time.sleep(0.001)
        assert client.data.flush(time.monotonic() + 2.0)
    finally:
        client.control.free(info.address, WAIT_S)
        for thread in threads:
            thread.join(WAIT_S)


def test_flush_gives_up_at_its_deadline_and_goes_on_later(node, client):
    info = client.create(4)
    client.get(info)
    node.is_down = True
    client.change(info, np.ones(4, np.float32))
    assert not client.data.flush(time.monotonic() + 0.01)
    node.is_down = False
    assert client.data.flush(time.monotonic() + WAIT_S)
    assert (client.get(info) == 1).all()


def test_a_closed_path_begins_nothing(client):
    info = client.create(4)
    client.get(info)
    client.data.close()
    with pytest.raises(PeerLostError):
        client.change(info, np.ones(4, np.float32))


def test_a_forked_child_lets_go_and_the_parent_goes_on(client):
    info = client.create(PIECE)
    work = client.change(info, np.ones(PIECE, np.float32))
    child = os.fork()
    if child == 0:
        client.data.abandon()
        client.control.abandon()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    client.finish(work)
    assert (client.get(info) == 1).all()


def test_a_forked_child_waits_for_no_thread_of_its_parent(client):
    info = client.create(PIECE)
    work = client.change(info, np.ones(PIECE, np.float32))
    held, go_on = threading.Event(), threading.Event()

    def hold():
        with work.queue._lock:
            held.set()
            go_on.wait()

    holder = threading.Thread(target=hold)
    holder.start()
    held.wait()
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        client.data.abandon()
        client.control.abandon()
        try:
            work.advance(time.monotonic())
        except PeerLostError:
            os._exit(0)
        os._exit(1)
    try:
        assert os.waitpid(child, 0)[1] == 0
    finally:
        go_on.set()
        holder.join()
    client.finish(work)


def test_arrays_of_verbs_that_time_out_at_a_lost_node_are_not_kept(node, boxes):
    region = boxes().create("r", 4)
    region.get()
    node.is_down = True
    arrays = []
    for _ in range(4):
        x = np.ones(4, np.float32)
        arrays.append(weakref.ref(x))
        with pytest.raises(RequestTimeoutError):
            region.put(x, timeout_s=0.05)
    del x
    gc.collect()
    assert [array() for array in arrays[1:]] == [None] * 3  # the first was in flight


def test_flush_says_nothing_of_what_a_call_has_raised(boxes):
    box, ones = boxes(), np.ones(4, np.float32)
    freed = box.create("freed", 4)
    box.free(freed)
    for call in (lambda: freed.put(ones), lambda: freed.put_nb(ones).wait()):
        with pytest.raises(RegionFreedError):
            call()
        box.flush()

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
import time

import pytest
import zmq

from smbox.errors import ConnectError, TransportError
from smbox.transports import zeromq
from smbox.transports.zeromq import LENT_NBYTES_MIN, ZmqTransport

WAIT_S = 30.0


@pytest.fixture
def router():
    context = zmq.Context()
    socket = context.socket(zmq.ROUTER)
    socket.linger = 0
    socket.rcvtimeo = int(WAIT_S * 1000)
    yield socket
    socket.close()
    context.term()


@pytest.fixture(params=["tcp", "ipc"])
def address(request, router, tmp_path):
    if request.param == "tcp":
        return f"tcp://127.0.0.1:{router.bind_to_random_port('tcp://127.0.0.1')}"
    router.bind(f"ipc://{tmp_path}/node")
    return f"ipc://{tmp_path}/node"


@pytest.fixture
def transport(address):
    opened = ZmqTransport(address, queue_max=4)
    yield opened
    opened.close()


def test_frames_go_there_and_back(transport, router):
    assert transport.send([b"header", b"body"])
    peer, *frames = router.recv_multipart()
    assert frames == [b"header", b"body"]
    router.send_multipart([peer, b"reply", b"", b"more"])
    assert [bytes(frame) for frame in transport.receive(WAIT_S)] == [b"reply", b"", b"more"]


def test_frames_are_read_only(transport, router):
    transport.send([b"?"])
    peer, _ = router.recv_multipart()
    router.send_multipart([peer, b"reply"])
    [frame] = transport.receive(WAIT_S)
    assert isinstance(frame, memoryview)
    assert len(frame) == 5


def test_nothing_to_receive_is_none(transport):
    assert transport.receive(0.0) is None
    assert transport.receive(0.01) is None
    assert transport.receive(-0.001) is None  # ZeroMQ's -1 ms would have no end


def test_the_longest_wait_ends_with_a_message(transport, router):
    transport.send([b"?"])
    router.send_multipart([*router.recv_multipart(), b"reply"])
    assert transport.receive(1e15)[-1] == b"reply"


def test_what_announces_longer_frames_than_a_node_is_left(router, monkeypatch):
    monkeypatch.setattr(zeromq, "FRAME_NBYTES_MAX", 1 << 20)
    address = f"tcp://127.0.0.1:{router.bind_to_random_port('tcp://127.0.0.1')}"
    with contextlib.closing(ZmqTransport(address, queue_max=4)) as transport:
        transport.send([b"?"])
        peer, _ = router.recv_multipart()
        for excess in (0, 1):
            router.send_multipart([peer, bytes((1 << 20) + excess)])
        assert len(transport.receive(WAIT_S)[0]) == 1 << 20
        assert transport.receive(0.2) is None


def test_a_full_queue_refuses_whole_messages():
    transport = ZmqTransport("tcp://127.0.0.1:9", queue_max=2)  # nobody listens: all wait here
    try:
        sent = [transport.send([b"header", b"body"]) for _ in range(8)]
        assert sent[0]
        assert not sent[-1]
        assert sent == sorted(sent, reverse=True)
    finally:
        transport.close()


def test_lent_memory_arrives_whole(transport, router):
    body = os.urandom(LENT_NBYTES_MIN * 3)
    assert transport.send([b"header", memoryview(body)])
    assert router.recv_multipart()[1:] == [b"header", body]


def test_once_it_is_released_lent_memory_is_no_longer_read():
    transport = ZmqTransport("tcp://127.0.0.1:9", queue_max=4)
    body = bytearray(LENT_NBYTES_MIN)
    transport.send([b"header", memoryview(body)[1:]])
    assert transport.is_released()
    body.append(0)  # copied: it is the caller's again
    transport.send([b"header", memoryview(body)])
    assert not transport.is_released()
    with pytest.raises(BufferError):
        body.clear()  # lent: the bytearray cannot be resized
    transport.close()
    deadline_s = time.monotonic() + WAIT_S
    while not transport.is_released():
        assert time.monotonic() < deadline_s
        time.sleep(0.001)
    body.clear()


def test_close_does_not_wait_for_a_peer():
    transport = ZmqTransport("tcp://127.0.0.1:9", queue_max=4)
    for _ in range(3):
        transport.send([b"header", bytes(8 * LENT_NBYTES_MIN)])
    begun_s = time.monotonic()
    transport.close()
    assert time.monotonic() - begun_s < 1.0


FORKS = """
import os, threading
from zmq.utils.garbage import gc
from smbox.transports.zeromq import LENT_NBYTES_MIN, ZmqTransport
with gc._lock:  # as another thread of the parent may hold it, in its first large send
    child = os.fork()
    if child == 0:
        transport = ZmqTransport("tcp://127.0.0.1:9", queue_max=4)
        transport.send([b"header", bytes(LENT_NBYTES_MIN)])
        os._exit(0)
assert os.waitpid(child, 0)[1] == 0
"""


def test_a_child_forked_in_a_large_send_sends():
    subprocess.run([sys.executable, "-c", FORKS], check=True, timeout=WAIT_S)


def test_close_can_be_repeated_and_ends_use(transport):
    transport.close()
    transport.close()
    with pytest.raises(TransportError):
        transport.send([b"header"])
    with pytest.raises(TransportError):
        transport.receive(0.0)


def test_an_address_that_zeromq_refuses(tmp_path):
    with pytest.raises(ConnectError):
        ZmqTransport(f"ipc://{tmp_path}/{'x' * 200}", queue_max=4)


def test_a_forked_child_leaves_the_parents_connection_alone(transport, router):
    transport.send([b"before"])
    peer, _ = router.recv_multipart()
    child = os.fork()
    if child == 0:
        transport.close()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    router.send_multipart([peer, b"reply"])
    assert bytes(transport.receive(WAIT_S)[0]) == b"reply"


def test_a_forked_child_can_open_its_own(address, router):
    child = os.fork()
    if child == 0:
        own = ZmqTransport(address, queue_max=4)
        own.send([b"child"])
        code = 0 if own.receive(WAIT_S) is not None else 1
        own.close()
        os._exit(code)
    peer, frame = router.recv_multipart()
    router.send_multipart([peer, frame])
    assert os.waitpid(child, 0)[1] == 0


def test_another_thread_may_take_over(transport, router):
    thread = threading.Thread(target=transport.send, args=([b"from a thread"],))
    thread.start()
    thread.join()
    peer, frame = router.recv_multipart()
    router.send_multipart([peer, frame])
    assert bytes(transport.receive(WAIT_S)[0]) == b"from a thread"


TWO_AT_ONCE = """
import threading, zmq
from zmq.utils.garbage import gc
from smbox.transports.zeromq import process_context
gc.store(None)  # it makes a context of its own
meet, Context = threading.Barrier(2, timeout=30.0), zmq.Context
def meeting():
    meet.wait()
    return Context()
zmq.Context = meeting
found = []
threads = [threading.Thread(target=lambda: found.append(process_context())) for _ in range(2)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(len(set(map(id, found))), found[0].closed)
"""


def test_two_threads_that_connect_at_once_share_one_context():
    command = [sys.executable, "-W", "error", "-c", TWO_AT_ONCE]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout.split(), done.stderr) == (["1", "False"], "")


INTERRUPTED = """
import itertools, sys, threading
from zmq.utils import garbage
from smbox.transports.zeromq import LENT_NBYTES_MIN, ZmqTransport

left = 0

def trace(frame, event, argument):
    global left
    if event == "line" and frame.f_code.co_filename in (garbage.__file__, threading.__file__):
        left -= 1
        if left == 0:
            raise KeyboardInterrupt
    return trace

def enter(frame, event, argument):
    names = "store", "is_alive", "_wait_for_tstate_lock"
    return trace if frame.f_code.co_name in names else None

def is_interrupted(nth):
    global left
    left, transport = nth, ZmqTransport("tcp://127.0.0.1:9", queue_max=4)
    sys.settrace(enter)
    try:
        transport.send([b"header", bytes(LENT_NBYTES_MIN)])
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(None)
        transport.close()
    return False

for nth in itertools.count(1):
    if not is_interrupted(nth):
        break
    assert garbage.gc.is_alive(), f"lost at line {nth}"
kept = [each for each in threading.enumerate() if type(each) is garbage.GarbageCollectorThread]
print(nth - 1, len(kept))
"""


def test_an_interrupted_send_leaves_the_thread_that_releases_frames():
    command = [sys.executable, "-W", "error", "-c", INTERRUPTED]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    lines, threads = map(int, done.stdout.split())
    assert lines > 5
    assert threads == 1


FORKED_AFTER = """
import os, time
from smbox.transports.zeromq import LENT_NBYTES_MIN, ZmqTransport

def lend():
    transport = ZmqTransport("tcp://127.0.0.1:9", queue_max=4)
    transport.send([b"header", bytes(LENT_NBYTES_MIN)])
    transport.close()
    limit_s = time.monotonic() + 20.0
    while not transport.is_released():
        assert time.monotonic() < limit_s
        time.sleep(0.001)

lend()
child = os.fork()
lend()
if child == 0:
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
"""


def test_after_a_fork_both_processes_release_frames():
    subprocess.run([sys.executable, "-c", FORKED_AFTER], check=True, timeout=60)

"""Tests of verbs over tcp that end early: by a timeout, by Ctrl-C or by a kill."""

from __future__ import annotations

import random
import signal
import threading
import time

import numpy as np
import pytest

import smbox

pytestmark = pytest.mark.shares

MIB = 1 << 20
NBYTES = 24 * MIB
OUTLASTS_S = 1.0
BUSY_S = 1.0  # allowance for other test runs

STRIKES = """
timeout_s, rng = 0.5, random.Random(int(sys.argv[3]))
region = box.attach("w")
x = np.ones(region.shape, region.dtype)
out = np.empty_like(x)
verbs = [
    lambda: region.put(x, timeout_s=timeout_s),
    lambda: region.get(out=out, timeout_s=timeout_s),
    lambda: region.elastic(x, 0.5, timeout_s=timeout_s),
    lambda: region.fetch_and_op(x, timeout_s=timeout_s),
]

def interrupt(after_s):
    time.sleep(after_s)
    os.kill(os.getpid(), signal.SIGINT)

longest_s = struck = 0
for round in range(30):
    timer = threading.Thread(target=interrupt, args=(rng.uniform(0, 0.06),))
    try:
        timer.start()
        begun_s = time.monotonic()
        rng.choice(verbs)()
        timer.join()
    except KeyboardInterrupt:
        struck += 1
    except smbox.RequestTimeoutError:
        pass
    try:
        timer.join()
    except KeyboardInterrupt:
        pass
    longest_s = max(longest_s, time.monotonic() - begun_s)
    if round % 3 == 0:
        print("stop", flush=True)  # the node, which is let go on again after the call
        sys.stdin.readline()
    begun_s = time.monotonic()
    try:
        rng.choice(verbs)()
    except smbox.RequestTimeoutError:
        pass
    longest_s = max(longest_s, time.monotonic() - begun_s)
    if round % 3 == 0:
        print("go", flush=True)
        sys.stdin.readline()
begun_s = time.monotonic()
box.close()
longest_s = max(longest_s, time.monotonic() - begun_s)
print("done", struck, longest_s, flush=True)
"""


def test_no_call_outlasts_its_timeout_whatever_was_interrupted_before(place, preloaded):
    place.box().create("w", NBYTES // 4)
    process = place.script(STRIKES, "tcp", 1, python=preloaded)
    signals = {"stop": signal.SIGSTOP, "go": signal.SIGCONT}
    while (word := process.stdout.readline().strip()) in signals:
        place.node.send(signals[word])
        process.stdin.write("\n")
        process.stdin.flush()
    place.node.send(signal.SIGCONT)
    told, struck, longest_s = (word or process.communicate()[1]).split()
    assert told == "done"
    assert int(struck) > 5
    assert float(longest_s) < 0.5 + OUTLASTS_S + BUSY_S


def test_the_array_of_a_verb_that_timed_out_is_not_read_again(place):
    """Bytes that the caller writes after the timeout reach no region, even at a slow node."""
    box = place.box("tcp")
    region, other = box.create("w", NBYTES, "uint8"), box.create("other", NBYTES, "uint8")
    x = np.ones(NBYTES, np.uint8)
    region.get()
    for _ in range(5):
        place.node.send(signal.SIGSTOP)
        with pytest.raises(smbox.RequestTimeoutError) as caught:
            region.put(x, timeout_s=0.3)
        x[:] = 9
        place.node.send(signal.SIGCONT)
        other.put(np.full(NBYTES, 2, np.uint8))
        found, outcome = region.get(), caught.value.handle.outcome()
        assert outcome in {"none", "partial", "all"}
        assert set(np.unique(found)) <= {0, 1}
        done = sum(limit - first for first, limit in caught.value.handle.ranges_done())
        assert np.count_nonzero(found) == done
        region.put(np.zeros(NBYTES, np.uint8))
        x[:] = 1


SNAPSHOTS = """
rng, region = random.Random(int(sys.argv[3])), box.attach("w")

def interrupt(after_s):
    time.sleep(after_s)
    os.kill(os.getpid(), signal.SIGINT)

begun_s = time.monotonic()
before = region.get(snapshot=True)
usual_s = time.monotonic() - begun_s
for round in range(20):
    timer = threading.Thread(target=interrupt, args=(rng.uniform(0, usual_s),))
    struck = 0
    try:
        timer.start()
        region.get(snapshot=True)
        timer.join()
    except KeyboardInterrupt:
        struck = 1
    try:
        timer.join()
    except KeyboardInterrupt:
        pass
    region[:1].get()  # whatever the channel had begun goes when it resumes
    print(struck, flush=True)
    sys.stdin.readline()
"""


def test_an_interrupted_snapshot_leaves_no_copy_at_the_node(place, preloaded):
    box = place.box()
    box.create("w", NBYTES, "uint8")
    before = box.stats()["used_nbytes"]  # with rings of clients of earlier tests
    process = place.script(SNAPSHOTS, "tcp", 3, python=preloaded)
    struck = 0
    for _ in range(20):
        line = process.stdout.readline()
        assert line, process.communicate()[1]
        struck += int(line)
        assert box.stats()["used_nbytes"] - before < 4 * MIB
        process.stdin.write("\n")
        process.stdin.flush()
    assert process.wait(60) == 0
    assert struck > 5


COUNTS = """
box.counter("steps" + sys.argv[3]).add()
print("ready", flush=True)
sys.stdin.readline()
"""


def test_clients_that_crash_after_counting_leave_room(place, preloaded):
    """Each client may ask again for its answer: the node keeps 8 bytes, not a 16 MiB ring."""
    box = place.box()
    before = box.stats()["used_nbytes"]
    clients = [place.script(COUNTS, "tcp", index % 2, python=preloaded) for index in range(4)]
    for client in clients:
        assert client.stdout.readline() == "ready\n"
        client.kill()
    assert box.stats()["used_nbytes"] - before < 16 * MIB
    assert sum(box.counter(f"steps{index}").value for index in range(2)) == 4


EXCHANGES = """
region = box.attach("center")
region.elastic(np.ones(region.shape, region.dtype), 0.5)
region[:1].get()  # tells the node that the answers arrived
print("ready", flush=True)
sys.stdin.readline()
"""


def test_clients_that_crash_after_an_exchange_leave_room(place, preloaded):
    box = place.box()
    box.create("center", MIB)
    before = box.stats()["used_nbytes"]
    clients = [place.script(EXCHANGES, "tcp", python=preloaded) for _ in range(2)]
    for client in clients:
        assert client.stdout.readline() == "ready\n"
    assert box.stats()["used_nbytes"] - before > 32 * MIB
    for client in clients:
        client.kill()
    limit_s = time.monotonic() + 20
    while box.stats()["used_nbytes"] - before > 4 * MIB:
        assert time.monotonic() < limit_s, "the rings stay"
        time.sleep(0.1)


def test_elastic_moves_x_by_what_the_center_got_though_the_node_dies(place):
    box, rng = place.box("tcp"), random.Random(7)
    region = box.create("center", NBYTES // 4)
    for _ in range(8):
        region.put(np.zeros(NBYTES // 4, np.float32))
        x = np.full(NBYTES // 4, 8, np.float32)
        killer = threading.Timer(rng.uniform(0, 0.03), place.restart)
        killer.start()
        region.elastic(x, 0.5)
        assert (x == 4).all()
        assert (region.get() == 4).all()
        killer.join()


FORKS = """
for round in range(int(sys.argv[3])):
    mine = smbox.connect(sys.argv[1], transport="tcp", timeout_s=10.0)
    region = mine.attach("w")
    x = np.ones(region.shape, region.dtype)
    started = threading.Event()

    def send():
        started.set()
        region.put(x)

    sender = threading.Thread(target=send)
    sender.start()
    started.wait()
    time.sleep(0.0002 * (round % 12))
    child = os.fork()
    if child == 0:
        status = 1
        try:
            region.put(x)
            mine.close()
            status = 0
        finally:
            os._exit(status)
    deadline_s = time.monotonic() + 20
    while os.waitpid(child, os.WNOHANG) == (0, 0):
        assert time.monotonic() < deadline_s, "the child hangs"
        time.sleep(0.001)
    sender.join()
    mine.close()
print("ok")
"""


def test_a_child_forked_in_a_first_large_send_sends(place):
    place.box().create("w", 2 * MIB, "uint8")
    process = place.script(FORKS, "tcp", 24)
    told, errors = process.communicate(timeout=120)
    assert (process.returncode, told) == (0, "ok\n"), errors

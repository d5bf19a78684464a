"""Tests of Ctrl-C at any moment of put, accumulate and elastic: every stripe is old or new.

Over tcp, an interrupted elastic may have moved the center and not x.
"""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.shares

STRIKES = 25

INTERRUPTED = """
count, stripe, rng = 7 * 65536 // 2, 65536, random.Random(int(sys.argv[3]))
region = box.create("c", count, "float64")
struck = 0
zeros, eights = np.zeros(count), np.full(count, 8.0)

def duration(x):
    region.put(zeros)
    began_s = time.monotonic()
    region.elastic(x, 0.5)
    return time.monotonic() - began_s

def interrupt(after_s):
    time.sleep(after_s)
    os.kill(os.getpid(), signal.SIGINT)

def stripes(array):
    found = [np.unique(array[at : at + stripe]) for at in range(0, count, stripe)]
    assert all(len(values) == 1 for values in found), found
    return [float(values[0]) for values in found]

def in_a_batch(x):
    with box.batch() as batch:
        batch.elastic(region, x, 0.5)

ops = {
    "batched elastic": in_a_batch,
    "put": lambda x: region.put(x),
    "accumulate": lambda x: region.accumulate(x),
    "fetch": lambda x: region.fetch_and_op(x),
    "elastic": lambda x: region.elastic(x, 0.5),
}
usual_s = min(duration(eights.copy()) for _ in range(3))
for _ in range(1000):
    if struck == int(sys.argv[4]):
        break
    op = rng.choice(list(ops))
    region.put(zeros)
    version, x = region.version, eights.copy()
    timer = threading.Thread(target=interrupt, args=(rng.uniform(0, 1.5 * usual_s),))
    interrupted = False
    try:
        try:
            timer.start()
            began_s = time.monotonic()
            ops[op](x)
            usual_s = (usual_s + time.monotonic() - began_s) / 2
        except KeyboardInterrupt:
            interrupted = True
        timer.join()
    except KeyboardInterrupt:  # it struck too late
        timer.join()
    c = stripes(region.get())
    done = sum(value != 0 for value in c)
    struck += interrupted
    assert region.version - version == done, (op, c, region.version, version)
    assert interrupted or done == 4, (op, c)
    moved = stripes(x)
    if "elastic" in op:
        pairs = {(8.0, 0.0), (4.0, 4.0)}
        if sys.argv[2] == "tcp" and interrupted:
            pairs.add((8.0, 4.0))  # the center moved, and the answer did not come
        assert all(pair in pairs for pair in zip(moved, c)), (moved, c)
    else:
        assert moved == [8.0] * 4 and set(c) <= {0.0, 8.0}, (op, c)
box.close()
print(struck)
"""


@pytest.mark.parametrize("transport", ["shm", "tcp"])
@pytest.mark.parametrize("seed", [1, 2])
def test_all_or_nothing_of_every_stripe_whenever_it_strikes(place, preloaded, transport, seed):
    process = place.script(INTERRUPTED, transport, seed, STRIKES, python=preloaded)
    told, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    assert int(told) == STRIKES, "it seldom struck inside a call"


LONG_BATCH = """
class Strike(Exception):
    pass

def strike(*_):
    raise Strike

signal.signal(signal.SIGALRM, strike)
count, changes = 131072, 8192  # 4 GiB in all
region, x = box.create("long", count), np.ones(count, np.float32)
region.accumulate(x)
try:
    with box.batch() as batch:
        for _ in range(changes):
            batch.accumulate(region, x)
        signal.setitimer(signal.ITIMER_REAL, 0.1)
except Strike:
    pass
print("the rest is undone" if region.version <= changes else "all was done first")
"""


def test_a_signal_comes_through_in_a_long_batch_on_mapped_memory(place, preloaded):
    process = place.script(LONG_BATCH, "shm", python=preloaded)
    told, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    assert told.strip() == "the rest is undone"

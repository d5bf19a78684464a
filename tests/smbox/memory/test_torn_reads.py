"""Writers and readers on several cores: memory ordering, which stepping cannot test."""

from __future__ import annotations

import mmap
import os
import signal
import time

import numpy as np
import pytest

from smbox.memory import layout
from smbox.memory.commit import StripeBusy
from smbox.memory.journal import Writer
from smbox.memory.kernels import KernelCode
from smbox.memory.locks import LockFile
from smbox.memory.mapped import MappedRegion
from smbox.memory.reading import Reader
from smbox.testing.regions import commit

STRESS_S = 0.5
STRIPE = layout.STRIPE_NBYTES // 8
READERS, WRITERS = 2, 2


def write_patterns(node: str, offset: int, seed: int) -> None:
    """Commit one value to an entire free stripe, repeatedly."""
    region, writer = MappedRegion.attach(node, offset), Writer.create(node)
    rng, stripes = np.random.default_rng(seed), region.nbytes // layout.STRIPE_NBYTES
    while True:
        stripe, value = int(rng.integers(stripes)), int(rng.integers(1 << 40))
        source = np.full(STRIPE, value, np.int64).view(np.uint8)
        nbytes = layout.STRIPE_NBYTES
        first = stripe * nbytes
        try:
            commit(writer, (region,), KernelCode.REPLACE, first, first + nbytes, source)
        except StripeBusy:
            continue


def read_rows(node: str, offset: int, torn: np.ndarray, reads: np.ndarray) -> None:
    """Read a word of every other 512 bytes."""
    region, reader = MappedRegion.attach(node, offset), Reader(LockFile(node))
    places = np.arange(0, 2 * STRIPE, 128)
    out = np.zeros(places.size, np.int64)
    while True:
        try:
            reader.read_rows(region, 0, places, 8, out.view(np.uint8))
        except StripeBusy:
            continue
        for stripe in out.reshape(2, -1):
            torn[0] += int((stripe != stripe[0]).any())
        reads[0] += 1


def read_patterns(node: str, offset: int, torn: np.ndarray, reads: np.ndarray) -> None:
    region, reader = MappedRegion.attach(node, offset), Reader(LockFile(node))
    out = np.zeros(region.nbytes // 8, np.int64)
    done = 0
    while True:
        try:
            reader.read(region, 0, region.nbytes, out.view(np.uint8), done=done)
        except StripeBusy:
            done = reader.done
            continue
        done = 0
        for stripe in out.reshape(-1, STRIPE):
            torn[0] += int((stripe != stripe[0]).any())
        reads[0] += 1


@pytest.fixture
def shared():
    """``i64[READERS, 8]`` that forked children write to."""
    return np.frombuffer(mmap.mmap(-1, mmap.PAGESIZE), np.int64)[: READERS * 8].reshape(-1, 8)


def forked(run, *arguments) -> int:
    child = os.fork()
    if child == 0:
        try:
            run(*arguments)
        finally:
            os._exit(1)
    return child


@pytest.mark.parametrize(
    "stripes", [pytest.param(2, id="short"), pytest.param(64, id="past the caches")]
)
def test_no_read_beside_writers_holds_half_of_a_commit(memory, make, shared, stripes, until):
    region = make(np.zeros(stripes * STRIPE, np.int64))
    where = (memory.name, region.offset)
    children = [forked(write_patterns, *where, seed) for seed in range(WRITERS)]
    children += [
        forked(read, *where, shared[i, :1], shared[i, 1:2])
        for i, read in enumerate((read_patterns, read_rows))
    ]
    time.sleep(STRESS_S)
    try:
        until(lambda: (shared[:, 1] > 5).all() and region.version() > 100)
    finally:
        for child in children:
            os.kill(child, signal.SIGKILL)
        ends = {os.WTERMSIG(os.waitpid(child, 0)[1]) for child in children}
    assert ends == {signal.SIGKILL}
    assert shared[:, 0].tolist() == [0] * READERS
    memory.sweep_slots()
    for stripe in region.array().reshape(-1, STRIPE):  # the last writers died somewhere
        assert (stripe == stripe[0]).all()

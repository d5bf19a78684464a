from __future__ import annotations

import errno
import gc
import os

import numpy as np
import pytest

from smbox.memory import mapping
from smbox.memory.mapping import HUGE_NBYTES, REST, SLOW_S, ask_for_huge_pages, map_shared
from smbox.memory.segment import Segment

LARGE = 3 * HUGE_NBYTES + 4096
PAGE = 4096


@pytest.fixture
def file(tmp_path):
    fd = os.open("/dev/shm", os.O_TMPFILE | os.O_RDWR, 0o600)
    os.ftruncate(fd, LARGE)
    yield fd
    os.close(fd)


def mappings() -> int:
    """Count the mappings of files without a name."""
    with open("/proc/self/maps") as lines:
        return sum("/dev/shm/#" in line for line in lines)


@pytest.mark.parametrize("nbytes", [1, PAGE, HUGE_NBYTES - 1, HUGE_NBYTES, LARGE - 3])
def test_it_is_the_file_to_its_last_byte(file, nbytes):
    one, two = map_shared(file, nbytes), map_shared(file, nbytes)
    one[0] = 3
    one[-1] = 7
    assert two[-1] == 7
    assert (one.size, one.dtype) == (nbytes, np.uint8)
    assert os.pread(file, nbytes, 0)[-1] == 7


def test_large_ones_begin_where_a_huge_page_may(file):
    kept = [map_shared(file, LARGE) for _ in range(3)]
    assert [each.ctypes.data % HUGE_NBYTES for each in kept] == [0, 0, 0]


@pytest.mark.parametrize("nbytes", [PAGE, LARGE])
def test_it_lives_as_long_as_a_view_of_it(file, nbytes):
    before = mappings()
    view = map_shared(file, nbytes)[5:].view(np.uint8)[::2]
    gc.collect()
    view[0] = 9
    assert mappings() == before + 1
    del view
    gc.collect()
    assert mappings() == before


def test_it_keeps_no_file_open(file):
    before = len(os.listdir("/proc/self/fd"))
    kept = map_shared(file, LARGE)
    assert len(os.listdir("/proc/self/fd")) == before
    assert kept.size == LARGE


@pytest.mark.parametrize("nbytes", [PAGE, LARGE])
def test_what_cannot_be_mapped_leaves_nothing(nbytes):
    with open("/proc/self/maps") as lines:
        before = len(list(lines))
    closed = os.open("/dev/shm", os.O_TMPFILE | os.O_RDWR, 0o600)
    os.close(closed)
    with pytest.raises(OSError, match="descriptor") as caught:
        map_shared(closed, nbytes)
    assert caught.value.errno == errno.EBADF
    with open("/proc/self/maps") as lines:
        assert len(list(lines)) <= before + 1  # the interpreter's own heap may have grown


def huge_kib(name: str) -> int:
    """Return the bytes of a segment that this process has mapped as huge pages."""
    found, here = 0, False
    with open("/proc/self/smaps") as lines:
        for line in lines:
            if "-" in line.split()[0]:
                here = line.rstrip().endswith(name)
            elif here and line.startswith("ShmemPmdMapped:"):
                found += int(line.split()[1])
    return found


class SlowKernel:
    """A fake clock by which a request for huge pages takes this long."""

    def __init__(self, takes_s: float):
        self.takes_s, self.now_s, self.asked = takes_s, 0.0, 0

    def monotonic(self) -> float:
        return self.now_s

    def madvise(self, *_: object) -> int:
        self.asked += 1
        self.now_s += self.takes_s
        return 0


def kernel_that_takes(monkeypatch, takes_s: float) -> SlowKernel:
    kernel = SlowKernel(takes_s)
    for name in ("_libc", "time"):
        monkeypatch.setattr(mapping, name, kernel)
    monkeypatch.setattr(mapping, "_next_request_s", -np.inf)
    return kernel


def test_a_kernel_that_is_slow_with_huge_pages_is_asked_seldom(monkeypatch, file):
    mapped = map_shared(file, LARGE)
    kernel = kernel_that_takes(monkeypatch, 0.3)
    for _ in range(10):
        ask_for_huge_pages(mapped)
    assert kernel.asked == 1
    kernel.now_s += REST * kernel.takes_s
    ask_for_huge_pages(mapped)
    assert kernel.asked == 2


def test_a_kernel_that_has_time_is_asked_each_time(monkeypatch, file):
    mapped = map_shared(file, LARGE)
    kernel = kernel_that_takes(monkeypatch, SLOW_S / 2)
    for _ in range(10):
        ask_for_huge_pages(mapped)
    assert kernel.asked == 10


def test_large_segments_have_huge_pages_where_the_kernel_gives_them(monkeypatch):
    monkeypatch.setattr(mapping, "_next_request_s", -np.inf)  # whatever was slow before
    name = f"smbox.huge-{os.getpid()}"
    made = Segment.create(name, LARGE)
    attached = Segment.attach(name)
    assert not made.bytes.any()
    made.bytes[:] = 5
    assert (attached.bytes == 5).all()
    found = huge_kib(name)
    made.unlink()
    if found == 0:
        pytest.skip("no huge pages of shared memory here: Linux 6.1 has them, unless denied")
    assert found >= 2 * 3 * HUGE_NBYTES // 1024


def test_without_huge_pages_all_is_as_before(monkeypatch):
    monkeypatch.setattr(mapping, "_MADV_COLLAPSE", 9999)  # as a kernel that knows none
    name = f"smbox.small-{os.getpid()}"
    made = Segment.create(name, LARGE)
    made.bytes[:] = 5
    assert huge_kib(name) == 0
    made.unlink()

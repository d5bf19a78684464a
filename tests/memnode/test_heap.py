from __future__ import annotations

import subprocess
import sys

import pytest

from memnode import heap

FAULTS = """
import resource
from memnode import heap

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(50):
        [bytearray(1 << 20) for _ in range(8)]
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

print(heap.keep_freed_memory(), faults() < 10_000)
"""


def test_memory_of_one_message_serves_the_next():
    done = subprocess.run(
        [sys.executable, "-c", FAULTS], capture_output=True, text=True, check=True, timeout=60
    )
    if done.stdout.startswith("False"):
        pytest.skip("this C library has no mallopt")
    assert done.stdout.split() == ["True", "True"]


def test_a_library_without_it_is_left_alone(monkeypatch):
    monkeypatch.setattr(heap.ctypes, "CDLL", lambda _: object())
    assert not heap.keep_freed_memory()

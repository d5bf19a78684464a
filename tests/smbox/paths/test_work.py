from __future__ import annotations

import numpy as np

from smbox.memory.kernels import KernelCode
from smbox.paths import base, work


def test_operations_are_cut_by_replacing():
    whole = work.Operation("put", KernelCode.REPLACE, 1, 0, 8, np.zeros(8, np.uint8))
    part = whole._replace(first=4, source=whole.source[4:])
    assert (part.limit - part.first, part.op) == (part.source.size, "put")


def test_waiting_changes_nothing():
    waiting = work.Waiting()
    assert (waiting.progress(), waiting.outcome(), waiting.ranges_done()) == (0, "none", [])


def test_the_words_are_those_of_the_paths():
    for name in ("Bytes", "ByteRange", "Operation", "RegionInfo", "Sink", "Work"):
        assert getattr(base, name) is getattr(work, name)

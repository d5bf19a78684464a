from __future__ import annotations

import platform

import numpy as np
import pytest

numba = pytest.importorskip("numba", reason="these are compiled by numba")
if platform.machine() not in {"x86_64", "AMD64"}:
    pytest.skip("its fence is an x86 instruction", allow_module_level=True)

from smbox.memory import compiled_stream  # noqa: E402
from smbox.memory.compiled_ops import address_of  # noqa: E402
from smbox.memory.compiled_stream import (  # noqa: E402
    LINE_NBYTES,
    PAGE_NBYTES,
    PAGES,
    STREAM_ABOVE_NBYTES,
)

GROUP = PAGES * PAGE_NBYTES
BYTES = np.random.default_rng(1).integers(1, 255, 3 * GROUP, dtype=np.uint8)


@numba.njit
def _stream(target, source, nbytes):
    compiled_stream.stream_bytes(address_of(target), address_of(source), nbytes)


@numba.njit
def _share(target, source, nbytes, total):
    compiled_stream.copy_share(address_of(target), address_of(source), nbytes, total)


@pytest.mark.parametrize("to", [0, 1, 31, 63])
@pytest.mark.parametrize("by", [0, 5, 64])
@pytest.mark.parametrize(
    "nbytes", [0, 1, 63, 64, 65, LINE_NBYTES * 9 + 7, GROUP - 1, GROUP, 2 * GROUP + 4321]
)
def test_it_copies_these_bytes_and_no_others(to: int, by: int, nbytes: int):
    target = np.zeros(3 * GROUP, np.uint8)
    _stream(target[to:], BYTES[by:], nbytes)
    assert target[to : to + nbytes].tobytes() == BYTES[by : by + nbytes].tobytes()
    assert not target[:to].any()
    assert not target[to + nbytes :].any()


@pytest.mark.parametrize(("to", "by"), [(0, 100), (100, 0), (7, 7)])
def test_ranges_may_overlap(to: int, by: int):
    data = BYTES.copy()
    _stream(data[to:], data[by:], 2 * GROUP)
    assert data[to : to + 2 * GROUP].tobytes() == BYTES[by : by + 2 * GROUP].tobytes()


def test_the_stores_pass_the_caches_and_end_with_a_fence():
    _stream(BYTES.copy(), BYTES, 1)
    code = next(iter(_stream.inspect_asm().values()))
    assert "movnt" in code
    assert "sfence" in code


@pytest.mark.parametrize("total", [1, STREAM_ABOVE_NBYTES, STREAM_ABOVE_NBYTES + 1])
def test_a_share_is_copied_whatever_the_total(total: int):
    target = np.zeros(GROUP + 99, np.uint8)
    _share(target[3:], BYTES, GROUP + 90, total)
    assert target.tobytes() == bytes(3) + BYTES[: GROUP + 90].tobytes() + bytes(6)

from __future__ import annotations

import numpy as np
import pytest

from smbox import dtypes
from smbox.errors import LayoutMismatchError
from smbox.memory.kernels import KernelCode, scatter_operand
from smbox.testing.regions import commit


def operand(places, values) -> np.ndarray:
    return scatter_operand(np.array(places, np.int64), np.ascontiguousarray(values))


@pytest.mark.parametrize("name", [dtype.name for dtype in dtypes.TABLE])
def test_rows_of_every_dtype_land_in_their_places(memory, make, name):
    dtype = dtypes.by_name(name).numpy
    region = make(np.zeros((5, 3), dtype))
    rows = operand([4, 1], np.ones((2, 3), dtype))
    commit(memory.writer, (region,), KernelCode.SCATTER_PUT, 0, region.nbytes, rows)
    assert np.array_equal(region.array()[:, 0], np.array([0, 1, 0, 0, 1], dtype))


def test_repeated_places_add_up_and_the_last_put_stays(memory, make):
    region = make(np.zeros((3, 2), np.float32))
    rows = operand([1, 0, 1], np.array([[1, 2], [10, 20], [100, 200]], np.float32))
    commit(memory.writer, (region,), KernelCode.SCATTER_SUM, 8, 24, rows, 2.0)
    assert region.array().tolist() == [[0, 0], [20, 40], [202, 404]]
    commit(memory.writer, (region,), KernelCode.SCATTER_PUT, 8, 24, rows)
    assert region.array().tolist() == [[0, 0], [10, 20], [100, 200]]


@pytest.mark.parametrize(
    "damaged",
    [
        np.zeros(8, np.uint8),
        operand([0], np.ones((1, 2), np.float32))[:-4],
        operand([2], np.ones((1, 2), np.float32)),
        operand([-1], np.ones((1, 2), np.float32)),
        operand([0], np.ones((1, 6), np.uint8).view(np.uint16)),
    ],
)
def test_a_damaged_operand_changes_nothing(memory, make, damaged):
    region = make(np.zeros((2, 2), np.float32))
    with pytest.raises(LayoutMismatchError):
        commit(memory.writer, (region,), KernelCode.SCATTER_SUM, 0, 16, damaged, 1.0)
    assert region.version() == 0

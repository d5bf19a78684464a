from __future__ import annotations

import numpy as np
import pytest

from smbox.errors import AddressRangeError, LayoutMismatchError
from smbox.testing.model_box import ModelBox


@pytest.fixture
def region():
    return ModelBox().create("r", shape=(4, 2))


def test_rows_add_up_and_the_last_put_stays(region):
    values = np.array([[1, 1], [2, 2]], np.float32)
    region.rows([1, 1]).accumulate(values, scale=2.0)
    region.rows([3, 3]).put(values)
    assert region.rows([3, 1]).get().tolist() == [[2, 2], [6, 6]]
    out = np.empty((1, 2), np.float32)
    assert region[1:].rows([0]).get(out=out) is out
    assert out.tolist() == [[6, 6]]
    assert region.version == 2


def test_what_does_not_fit_is_refused(region):
    for outside in ([4], [-1]):
        with pytest.raises(AddressRangeError):
            region.rows(outside)
    with pytest.raises(LayoutMismatchError):
        region.rows([0]).put(np.zeros((2, 2), np.float32))
    assert region.rows([]).get().shape == (0, 2)

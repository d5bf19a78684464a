"""The checks of signals and handles hold on mapped memory."""

from __future__ import annotations

import pytest

from smbox.testing import contract_pgas
from smbox.testing.contract import checks_of
from smbox.testing.solo import solo_box, solo_boxes


@pytest.fixture
def box():
    with solo_boxes() as opener, solo_box(opener) as box:
        yield box


@pytest.mark.parametrize("check", checks_of(contract_pgas), ids=lambda check: check.__name__)
def test_on_mapped_memory(box, check):
    check(box)

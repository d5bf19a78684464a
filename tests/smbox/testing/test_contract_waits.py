"""The checks of waits hold on mapped memory."""

from __future__ import annotations

import pytest

from smbox.testing import contract_waits
from smbox.testing.contract import checks_of


@pytest.mark.parametrize("check", checks_of(contract_waits), ids=lambda check: check.__name__)
def test_on_mapped_memory(box, check):
    check(box)

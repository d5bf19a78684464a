from __future__ import annotations

from collections.abc import Iterator

import pytest

import smbox
from smbox.testing.solo import solo_box, solo_boxes


@pytest.fixture
def box() -> Iterator[smbox.Box]:
    """A box on a memory of this test, without a node."""
    with solo_boxes() as opener, solo_box(opener) as box:
        yield box

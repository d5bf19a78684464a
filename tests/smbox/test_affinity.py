from __future__ import annotations

import pytest

from smbox.address import LAYOUTS, check_layout
from smbox.errors import ConfigError


def test_layouts_are_checked():
    for layout in LAYOUTS:
        check_layout(layout)
    with pytest.raises(ConfigError, match="single, striped"):
        check_layout("diagonal")

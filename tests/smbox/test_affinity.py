from __future__ import annotations

import pytest

from smbox.directory import LAYOUTS
from smbox.errors import ConfigError


def test_layouts_are_checked(boxes):
    box = boxes()
    for layout in LAYOUTS:
        box.create(layout, 4, layout=layout)
    with pytest.raises(ConfigError, match="single, striped"):
        box.create("w", 4, layout="diagonal")

from __future__ import annotations

import pytest

from smbox.testing.script_node import ScriptNode
from smbox.testing.welcome import welcome


@pytest.fixture
def script() -> ScriptNode:
    """A node whose replies the test writes; a channel is connected to it."""
    made = ScriptNode()
    made.wire.welcome(welcome())
    made.move()
    return made

"""A memory without a server passes the contract, and leaves nothing."""

from __future__ import annotations

import numpy as np

from smbox.memory.segment import listing
from smbox.testing.solo import solo_box, solo_boxes


def test_boxes_share_the_memory_and_it_goes_with_them():
    with solo_boxes() as opener:
        name = opener.control.memory.name
        with solo_box(opener) as one, solo_box(opener) as two:
            one.create("some", init=np.ones(3, np.float32))
            two.attach("some").accumulate(np.ones(3, np.float32))
            assert one.attach("some").get().tolist() == [2, 2, 2]
        assert listing(f"smbox.{name}.")
    assert listing(f"smbox.{name}.") == []


def test_memories_live_apart():
    with solo_boxes() as one, solo_boxes() as two:
        assert one.control.node.uuid != two.control.node.uuid
        with solo_box(one) as box, solo_box(two) as other:
            box.create("some", shape=(1,))
            assert other.regions() == []

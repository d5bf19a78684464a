"""A node that can open too few files."""

from __future__ import annotations

import numpy as np
import pytest

from smbox.errors import SystemLimitError
from smbox.memory import channels
from smbox.wire.ops import Status


class Full(channels.Segment):
    """Segments that cannot be opened at present."""

    @classmethod
    def attach(cls, name):
        raise SystemLimitError("too many open files", name=name)


def test_a_change_whose_answer_cannot_be_read_is_not_refused(bench, monkeypatch):
    peer, one = bench.peer(), np.ones(1, np.float32)
    address = peer.create("w", init=1.0).body.address
    peer.fetch_add(address, one, number=1)
    peer.hello()  # as if the reply had been lost
    with monkeypatch.context() as patch:
        patch.setattr(channels, "Segment", Full)
        refused = peer.fetch_add(address, one, number=2)  # nothing of this one is applied
        assert (refused.status, refused.error.applied) == (Status.ERROR, 1)
        with pytest.raises(AssertionError, match="no reply"):
            peer.fetch_add(address, one, number=1)
    assert np.frombuffer(peer.reply().payload, np.float32).tolist() == [1]
    assert peer.get(address, 4).tolist() == [2]

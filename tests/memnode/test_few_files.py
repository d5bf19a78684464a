"""A node that can open too few files."""

from __future__ import annotations

import errno
import os

import numpy as np
import pytest

from smbox.errors import SystemLimitError
from smbox.memory import channels
from smbox.memory.channels import rings_of
from smbox.wire.messages import Empty
from smbox.wire.ops import Op, Status


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


@pytest.mark.parametrize("says_bye", [False, True])
def test_a_session_ends_with_its_ring(bench, monkeypatch, says_bye):
    peer = bench.peer()
    peer.fetch_add(peer.create("w").body.address, np.ones(1, np.float32))
    [row] = bench.memory.channels.rows()
    assert rings_of(bench.name, row.serial)

    def full(*_args):
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", full)
        patch.setattr(os, "listdir", full)
        if says_bye:
            assert peer.ask(Op.BYE, body=Empty()).error is None
        else:
            bench.tick(after_s=301)
    assert bench.memory.channels.rows() == []
    assert rings_of(bench.name, row.serial) == []

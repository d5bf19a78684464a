"""Segments of a running node and its clients: who may open them."""

from __future__ import annotations

import os
import stat

import numpy as np
import pytest

from smbox.memory import layout
from smbox.memory.segment import DIRECTORY, listing

pytestmark = pytest.mark.shares

KINDS = {"node", "locks", "cookie", "channels", "region", "slot", "ring"}


@pytest.fixture(scope="module")
def open_umask():
    """Let files have every mode that their creator asks for, in the node's process too."""
    before = os.umask(0)
    yield
    os.umask(before)


def test_every_segment_belongs_to_this_user_alone(open_umask, place):
    local, remote = place.box("shm"), place.box("tcp")
    ones = np.ones(8, np.float32)
    local.create("local", init=ones).put(ones)  # makes a journal slot of this process
    remote.create("remote", init=ones).fetch_and_op(ones)  # makes a ring
    remote.counter("steps").add(1)

    names = listing(layout.name_of(place.name))
    assert {name.split(".")[2] for name in names} == KINDS
    for name in names:
        found = (DIRECTORY / name).lstat()
        assert stat.filemode(found.st_mode) == "-rw-------", name
        assert found.st_uid == os.geteuid(), name

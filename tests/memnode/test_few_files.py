"""A node that can open too few files."""

from __future__ import annotations

import errno
import os
import subprocess
import sys

import numpy as np
import pytest

from memnode.access import Access
from memnode.cli import EXIT_MEMORY
from smbox.errors import SystemLimitError
from smbox.keys import Authorised, Role, add_client, make_node_key, read_client_key
from smbox.memory import channels
from smbox.memory.channels import rings_of
from smbox.memory.segment import listing
from smbox.memory.superblock import remove_all
from smbox.wire.messages import Empty
from smbox.wire.ops import Op, Status


class Full(channels.Segment):
    """Segments that cannot be opened at present."""

    @classmethod
    def attach(cls, name):
        raise SystemLimitError("too many open files", name=name)


def test_a_start_with_too_few_files_for_its_addresses_is_refused():
    limited = ["bash", "-c", 'ulimit -n 24; exec "$0" "$@"']  # ZeroMQ would abort
    command = [*limited, sys.executable, "-m", "memnode", "--name", "few", "--memory", "1MiB"]
    command += ["--bind", "tcp://127.0.0.1:0"] * 4
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    left = listing("smbox.few.")
    remove_all("few")
    assert (done.returncode, left) == (EXIT_MEMORY, [])
    assert "raise ulimit -n" in done.stderr


def full(*_args):
    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))


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
    with monkeypatch.context() as patch:
        patch.setattr(os, "open", full)
        patch.setattr(os, "listdir", full)
        if says_bye:
            assert peer.ask(Op.BYE, body=Empty()).error is None
        else:
            bench.tick(after_s=301)
    assert bench.memory.channels.rows() == []
    assert rings_of(bench.name, row.serial) == []


@pytest.mark.parametrize("function", ["open", "listdir"])
def test_keys_that_are_unchanged_stay_authorised(tmp_path, monkeypatch, function):
    def added(name: str) -> str:
        return read_client_key(add_client(tmp_path, Authorised(name, Role.READ))).public

    make_node_key(tmp_path)
    kept, gone = added("kept"), added("gone")
    access = Access(tmp_path)
    (tmp_path / "clients" / "gone.toml").unlink()
    new = added("new")
    with monkeypatch.context() as patch:
        patch.setattr(os, function, full)
        assert access.find_now(gone) is None
        access.refresh()
        assert access.find_now(kept) is not None
        assert (access.find(gone), access.find(new)) == (None, None)
        with pytest.raises(OSError, match=os.strerror(errno.EMFILE)):
            Access(tmp_path)
    access.refresh()
    assert access.find(kept) is not None
    assert access.find(gone) is None
    assert access.find(new) is not None

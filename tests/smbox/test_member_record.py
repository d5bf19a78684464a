"""Member records: their rows, and the comparison of pids."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

import numpy as np
import pytest
from msgspec.structs import replace

from smbox.errors import SystemLimitError
from smbox.member_record import RESTARTS, WORDS, Record, domain, hash_of


def own():
    return Record.own(launch=hash_of("a launch"), restart=3)


def test_a_record_survives_its_row():
    record = replace(own(), generation=7)
    assert Record.of(record.row()) == record


def test_a_row_with_a_host_that_is_no_text_contains_no_record():
    """As any other row that another client has overwritten."""
    row = replace(own(), host="host").row().tobytes()
    assert Record.of(np.frombuffer(row.replace(b"host", b"\xff\xfe\xfd\xfc"), np.int64)) is None


@pytest.mark.parametrize(
    ("name", "kept"), [("h" * 80, "h" * 64), ("h" + "é" * 40, "h" + "é" * 31)]
)
def test_a_long_host_name_is_cut(name, kept, monkeypatch):
    monkeypatch.setattr(socket, "gethostname", lambda: name)
    assert Record.of(own().row()).host == kept


def test_the_largest_record_fits_its_row():
    word = (1 << 56) - 1
    largest = replace(
        own(),
        generation=(1 << 23) - 1,
        pid=1 << 22,
        pid_started=1 << 62,
        domain=word,
        launch=word,
        restart=RESTARTS - 1,
        host="h" * 64,
    )
    assert Record.of(largest.row()) == largest


def test_only_a_pid_of_this_domain_can_be_known_dead():
    record = own()
    assert not record.is_known_dead()
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    gone = replace(record, pid=ended.pid)
    assert gone.is_known_dead()
    assert not replace(gone, domain=record.domain + 1).is_known_dead()
    assert not replace(gone, domain=0).is_known_dead()
    assert replace(record, pid_started=record.pid_started + 1).is_known_dead()


@pytest.mark.parametrize("kind", ["pid", "time"])
def test_each_namespace_in_which_start_times_differ_is_a_domain(kind, monkeypatch):
    known, readlink = domain(), os.readlink
    other = {f"/proc/self/ns/{kind}": f"{kind}:[0]"}
    monkeypatch.setattr(os, "readlink", lambda path: other.get(path) or readlink(path))
    assert domain.__wrapped__() not in {0, known}


@pytest.mark.parametrize("error", [FileNotFoundError, PermissionError])
def test_without_proc_nothing_is_known_of_a_process(monkeypatch, error):
    def fail(_path):
        raise error

    monkeypatch.setattr(os, "readlink", fail)
    monkeypatch.setattr("smbox.member_record.domain", domain.__wrapped__)
    record = replace(own(), pid_started=0)
    assert record.domain == 0
    assert not record.is_known_dead()


def test_each_user_has_a_domain(monkeypatch):
    """Who mounts /proc with hidepid hides the processes of other users, which live."""
    known = domain()
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    assert domain.__wrapped__() not in {0, known}


def test_a_limit_of_the_system_does_not_leave_the_domain_unknown(no_more_files):
    known = domain()
    domain.cache_clear()
    with no_more_files(), pytest.raises(SystemLimitError, match="ulimit -n"):
        domain()
    assert domain() == known != 0


def test_equal_texts_have_equal_hashes():
    assert hash_of("one") == hash_of("one") != hash_of("two")
    assert hash_of("") == 0


@pytest.mark.parametrize("word", [-(1 << 63), -1, 0, 1, (1 << 63) - 1])
def test_a_row_of_garbage_is_nobodys(word):
    assert Record.of(np.full(WORDS, word, np.int64)) is None

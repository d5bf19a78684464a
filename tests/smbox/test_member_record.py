"""Records of members: what fits into a row, and whose pids can be compared."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from smbox.member_record import WORDS, Record, hash_of


def own():
    return Record.own(lease_s=2.5, launch=hash_of("a launch"))


def test_a_record_survives_its_row():
    record = replace(own(), generation=7)
    found = Record.of(record.row())
    assert replace(found, since=record.since) == record
    assert abs((found.since - record.since).total_seconds()) < 1e-3


def test_a_long_host_name_is_cut():
    assert Record.of(replace(own(), host="h" * 80).row()).host == "h" * 64


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


def test_equal_texts_have_equal_hashes():
    assert hash_of("one") == hash_of("one") != hash_of("two")
    assert hash_of("") == 0


@pytest.mark.parametrize("word", [-(1 << 63), -1, (1 << 63) - 1])
def test_a_row_of_garbage_is_read_all_the_same(word):
    found = Record.of(np.full(WORDS, word, np.int64))
    assert 1970 <= found.since.year <= 9999
    found.is_known_dead()

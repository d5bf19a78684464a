"""Logs: what was written before a kill is there, and a record cut off never was."""

from __future__ import annotations

import pytest

from smbox.testing.chaos import plan
from smbox.testing.chaos.log import (
    RECORD_NBYTES,
    Change,
    LogWriter,
    count_records,
    log_path,
    read_log,
    read_logs,
)


@pytest.fixture
def path(tmp_path):
    path = log_path(tmp_path, 2, 5)
    log = LogWriter(path)
    log.intend([Change(0, 1), Change(3, 2)])
    log.acknowledge([Change(3, 2)])
    log.intend([Change(6, 3)])
    log.close()
    return path


def test_what_is_not_acknowledged_stays_open(path):
    found = read_log(path)
    assert found.acknowledged == [Change(3, 2)]
    assert found.open == [Change(0, 1), Change(6, 3)]


def test_a_record_that_was_cut_off_is_none(path):
    path.write_bytes(path.read_bytes()[:-1])
    assert read_log(path).open == [Change(0, 1)]


def test_logs_are_found_by_identity(path, tmp_path):
    assert list(read_logs(tmp_path)) == [plan.identity(2, 5)]


def test_records_are_counted_by_client(path, tmp_path):
    assert path.stat().st_size == 4 * RECORD_NBYTES
    assert count_records(tmp_path) == count_records(tmp_path, first=2) == 4
    assert count_records(tmp_path, first=3) == 0


def test_a_log_is_of_one_life(path):
    with pytest.raises(FileExistsError):
        LogWriter(path)

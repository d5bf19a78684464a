from __future__ import annotations

import os
from pathlib import Path

import pytest

from smbox_torch.workers.reporter import REPORT_FD, Reporter, parse


@pytest.fixture
def pipe():
    ends = os.pipe()
    yield ends
    for end in ends:
        os.close(end)


def test_a_report_is_a_line_that_parses_to_its_fields(pipe):
    reporter = Reporter.from_env({REPORT_FD: str(pipe[1])})
    assert reporter.report(step=3, loss=0.5, phase="warm up")
    assert parse(os.read(pipe[0], 1000).decode()) == {
        "step": 3,
        "loss": 0.5,
        "phase": "warm up",
    }


def test_without_a_launcher_reports_go_nowhere():
    assert not Reporter.from_env({}).report(step=1)


def test_a_full_pipe_never_blocks_and_loses_only_reports(pipe):
    reporter = Reporter(pipe[1])
    sent = 0
    while reporter.report(text="x" * 1000):
        sent += 1
    os.read(pipe[0], 1 << 20)
    assert sent > 1
    assert reporter.report(step=1)


def test_a_launcher_that_is_gone_ends_no_training():
    read_end, write_end = os.pipe()
    os.close(read_end)
    reporter = Reporter(write_end)
    assert not reporter.report(step=1)
    assert not reporter.report(step=2)
    os.close(write_end)


@pytest.mark.parametrize("number", ["closed", "a file", "99999999999999999999"])
def test_a_descriptor_that_is_no_pipe_any_more_is_left_alone(tmp_path: Path, number: str):
    with (tmp_path / "other").open("wb") as other:
        fd = {"closed": 999_999, "a file": other.fileno()}.get(number, number)
        assert not Reporter.from_env({REPORT_FD: str(fd)}).report(step=1)
    assert (tmp_path / "other").read_bytes() == b""


def test_a_line_that_a_pipe_might_tear_is_not_sent(pipe):
    assert not Reporter(pipe[1]).report(text="x" * 5000)


@pytest.mark.parametrize("line", ["", "hello", "[1]", "3", '{"step": '])
def test_what_is_no_report_has_no_fields(line: str):
    assert parse(line) == {}

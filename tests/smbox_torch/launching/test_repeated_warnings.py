from __future__ import annotations

import pytest

from smbox_torch.launching.repeated_warnings import KINDS_MAX, RepeatedWarnings

PYTHON = "/x/train.py:3: UserWarning: lr is high"


def test_a_warning_is_no_repeat_the_first_time_whoever_prints_it():
    repeats = RepeatedWarnings()
    found = [repeats.is_repeat(rank, PYTHON) for rank in (0, 1, 1, 2)]
    assert found == [False, True, True, True]
    assert list(repeats.summary()) == [f"4 times, from ranks 0, 1, 2: {PYTHON}"]


def test_the_line_of_code_below_a_repeat_belongs_to_it():
    repeats = RepeatedWarnings()
    code = "  warnings.warn('lr is high')"
    assert [repeats.is_repeat(0, line) for line in (PYTHON, code, "text")] == [False] * 3
    assert [repeats.is_repeat(1, line) for line in (PYTHON, code, code)] == [True, True, False]
    assert not repeats.is_repeat(0, code)


def test_the_second_line_of_a_repeat_of_torch_belongs_to_it():
    repeats = RepeatedWarnings()
    end = "Consider detach(). (Triggered internally at a.cpp:8.)"
    lines = [PYTHON, end, "  loss = float(x)"]
    assert [repeats.is_repeat(0, line) for line in lines] == [False] * 3
    assert [repeats.is_repeat(1, line) for line in [*lines, "text", end]] == [
        *[True] * 3,
        *[False] * 2,
    ]


@pytest.mark.parametrize("text", ["Warning: unused (function operator())", "[c10d] no IPv6"])
def test_torchs_warnings_are_known_without_their_time(text: str):
    repeats = RepeatedWarnings()
    assert not repeats.is_repeat(0, f"[W1123 07:41:11.123456 a.cpp:1] {text}")
    assert repeats.is_repeat(1, f"[W1123 07:41:12.123456 a.cpp:1] {text}")
    assert not repeats.is_repeat(1, "[W1123 07:41:12.123456 a.cpp:1] other")


def test_warnings_of_a_logger_count():
    repeats = RepeatedWarnings()
    found = [repeats.is_repeat(rank, "WARNING:root:loss is high") for rank in range(2)]
    assert found == [False, True]


def test_other_lines_are_never_repeats():
    repeats = RepeatedWarnings()
    for line in ("loss 0.5", "", "a Warning", "Traceback (most recent call last):"):
        assert not repeats.is_repeat(0, line)
        assert not repeats.is_repeat(0, line)
    assert not repeats.is_repeat(0, PYTHON)
    assert list(repeats.summary()) == []


def test_only_so_many_are_remembered():
    repeats = RepeatedWarnings()
    for number in range(KINDS_MAX):
        repeats.is_repeat(0, f"{PYTHON} {number}")
    assert repeats.is_repeat(0, f"{PYTHON} 0")
    assert not repeats.is_repeat(0, PYTHON)
    assert not repeats.is_repeat(0, PYTHON)

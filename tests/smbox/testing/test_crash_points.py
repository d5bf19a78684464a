from __future__ import annotations

import mmap

import pytest

from smbox.testing.crash_points import killed_at

HERE = {__file__}


@pytest.fixture
def shared():
    """A byte that children share with their parent."""
    with mmap.mmap(-1, 1) as memory:
        yield memory


def test_each_line_is_a_point_and_the_end_is_none(shared):
    def three_lines():
        shared[0] += 1
        shared[0] += 1
        shared[0] += 1

    found = []
    for line in range(1, 5):
        shared[0] = 0
        found.append((killed_at(line, three_lines, HERE), shared[0]))
    assert found == [(True, 0), (True, 1), (True, 2), (False, 3)]


def test_repeated_lines_count_again(shared):
    def loop():
        for _ in range(3):
            shared[0] += 1

    assert killed_at(4, loop, HERE)  # for, add, for; then the second add
    assert shared[0] == 1


def test_lines_of_other_files_do_not_count(shared):
    def change():
        shared[0] += 1

    assert not killed_at(1, change, {"elsewhere.py"})
    assert shared[0] == 1


def test_what_goes_wrong_in_the_child_is_told(capfd):
    with pytest.raises(AssertionError, match="ended with 1"):
        killed_at(99, lambda: 1 / 0, HERE)
    assert "ZeroDivisionError" in capfd.readouterr().err

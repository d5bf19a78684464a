"""Meeting words: their order, ends, and the first word of a new member."""

from __future__ import annotations

import numpy as np
import pytest

from smbox.errors import RequestTimeoutError
from smbox.meeting import (
    ENDS,
    MeetingWait,
    first_word,
    has_arrived,
    is_at_end,
    next_end,
    next_meeting,
)
from smbox.member_record import MemberInfo


def words(*each: int) -> np.ndarray:
    return np.array(each, np.int64)


def test_a_meeting_that_was_given_up_is_next_again():
    assert [next_meeting(word) for word in range(5)] == [1, 1, 2, 2, 3]


def test_an_end_lies_behind_all_meetings_before_it():
    assert [next_end(word) for word in (0, 1, 24, 2 * ENDS - 1)] == [ENDS] * 4
    assert [next_end(word) for word in (2 * ENDS, 2 * ENDS + 9)] == [2 * ENDS] * 2
    assert has_arrived(words(2 * ENDS - 1, 2 * ENDS, 9), 17).tolist() == [True, True, False]
    assert next_meeting(2 * ENDS) == ENDS + 1


def test_at_an_end_is_who_waits_there():
    found = is_at_end(words(0, 1, 2 * ENDS - 2, 2 * ENDS - 1, 2 * ENDS, 4 * ENDS - 1))
    assert found.tolist() == [False, False, False, True, False, True]


def test_who_joins_has_held_what_the_others_have_but_no_end_at_which_they_wait():
    assert first_word(words()) == 0
    assert first_word(words(4, 7)) == 6
    assert first_word(words(2 * ENDS - 1, 7)) == 6
    assert first_word(words(2 * ENDS - 1)) == 0
    assert first_word(words(4 * ENDS - 1)) == 2 * ENDS
    assert first_word(words(2 * ENDS, 2 * ENDS - 1)) == 2 * ENDS


def test_the_missing_members_are_logged_once_in_each_interval(monkeypatch, caplog):
    monkeypatch.setattr("smbox.meeting.WARNING_INTERVAL_S", 0.0)
    wait = MeetingWait(60.0)
    monkeypatch.setattr("smbox.meeting.WARNING_INTERVAL_S", 600.0)
    for _ in range(2):
        assert 0.0 < wait.left_s([MemberInfo.vacant(3)]) <= 60.0
    assert len(caplog.records) == 1


def test_only_members_that_never_joined_are_told_as_such():
    """A living member has no record for a moment after it took its place."""
    absent = [MemberInfo(1, None, None, None, alive=True, progress=0), MemberInfo.vacant(2)]
    with pytest.raises(RequestTimeoutError, match=r"rank 1 \(host None.*rank 2 \(never came"):
        MeetingWait(0.0).left_s(absent)

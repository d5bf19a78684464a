from __future__ import annotations

from smbox.testing.welcome import welcome


def test_what_is_not_told_is_as_of_a_new_memory():
    found = welcome(window=9, resumed=True)
    assert (found.window, found.resumed, found.applied, found.incarnation) == (9, True, 0, 1)

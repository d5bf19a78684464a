"""Prefixes of names of regions: invalid ones are refused before a region is created."""

from __future__ import annotations

import enum

import pytest

import smbox
from smbox.errors import ConfigError, LimitError
from smbox.head import check_prefix

PART = "w#0123456789abcdef"
WRONG = [
    (7, TypeError, "a region's name is a str, not int"),
    (None, TypeError, "a region's name is a str, not NoneType"),
    (b"run", TypeError, "a region's name is a str, not bytes"),
    ("", LimitError, "1 to 200 bytes"),
    ("a\nb", ConfigError, "printable"),
    ("a\ud800", ConfigError, "printable"),
    (PART, ConfigError, "parts of striped regions"),
    (f"{PART}/x", ConfigError, "parts of striped regions"),
]


@pytest.mark.parametrize(("name", "kind", "says"), WRONG)
@pytest.mark.parametrize("use", [smbox.join, lambda box, name: box.lock(name)])
def test_no_run_and_no_lock_has_such_a_name(box, use, name, kind, says):
    with pytest.raises(kind, match=says):
        use(box, name)
    assert box.regions() == []


class Name(str, enum.Enum):  # noqa: UP042 - str() of its names is another text
    RUN = "run"


def test_runs_and_locks_have_the_characters_of_their_names(box):
    """An f-string makes "Name.RUN" of it, so it was another lock than "run"."""
    with box.lock(Name.RUN), smbox.join(box, Name.RUN):
        assert box.lock("run").holder() is not None
        with smbox.join(box, "run") as second:
            assert second.rank == 1


@pytest.mark.parametrize("letter", ["x", "ü"])
def test_a_prefix_leaves_room_for_what_is_appended(box, letter):
    nbytes = len(letter.encode())
    for use, most in ((smbox.join, 184), (lambda box, name: box.lock(name), 179)):
        with pytest.raises(LimitError, match=f"1 to {most} bytes"):
            use(box, letter * (most // nbytes + 1))
        assert box.regions() == []
    check_prefix(letter * (128 // nbytes))
    with pytest.raises(LimitError, match="1 to 128 bytes"):
        check_prefix(letter * (128 // nbytes + 1))
    with smbox.join(box, letter * (184 // nbytes)):
        assert len(box.regions()) == 2


def test_a_lock_of_an_impossible_lease_creates_nothing(box):
    with pytest.raises(ConfigError):
        box.lock("door", lease_s=0.0)
    assert box.regions() == []

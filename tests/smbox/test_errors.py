"""Every error can be pickled and printed, and has a builtin base class."""

from __future__ import annotations

import copy
import pickle
from typing import Any, get_type_hints

import pytest

from smbox import errors
from smbox.errors import SmboxError

KINDS = [kind for name, kind in vars(errors).items() if name.endswith("Error")]
CAUGHT_AS = {
    "ConfigError": ValueError,
    "TransportError": ConnectionError,
    "ConnectError": ConnectionError,
    "PeerLostError": ConnectionError,
    "RequestTimeoutError": TimeoutError,
    "SegmentError": OSError,
    "SystemLimitError": OSError,
    "RegionNotFoundError": KeyError,
    "AddressRangeError": IndexError,
    "LayoutMismatchError": ValueError,
    "OutOfMemoryError": MemoryError,
    "AccessDeniedError": PermissionError,
    "VersionMismatchError": errors.RemoteProtocolError,
    "SessionExpiredError": errors.RemoteError,
}


@pytest.mark.parametrize("kind", KINDS)
def test_pickles_and_prints(kind):
    error = kind("what was wrong", outcome="unknown", size=3)
    for found in (error, pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(found) is kind
        assert str(found) == "what was wrong (outcome='unknown', size=3)"
        assert found.message == "what was wrong"
        assert found.facts == {"outcome": "unknown", "size": 3}


@pytest.mark.parametrize("kind", KINDS)
def test_without_facts_only_the_message(kind):
    assert str(kind("plain")) == "plain"
    assert str(pickle.loads(pickle.dumps(kind("plain")))) == "plain"


@pytest.mark.parametrize(("name", "base"), CAUGHT_AS.items())
def test_is_what_a_user_would_catch(name, base):
    with pytest.raises(base):
        raise getattr(errors, name)("x")


def test_a_type_checker_accepts_calls_of_the_handle_of_a_timeout():
    assert get_type_hints(errors.RequestTimeoutError)["handle"] is Any


def test_the_names_of_all_classes_of_the_tree_end_alike():
    def below(kind: type) -> set[type]:
        return {kind}.union(*(below(each) for each in kind.__subclasses__()))

    ours = {kind for kind in below(SmboxError) if kind.__module__ == errors.__name__}
    assert ours == set(KINDS)


def test_tree_of_the_docstring_names_every_class():
    assert all(name in errors.__doc__ for name in vars(errors) if name.endswith("Error"))

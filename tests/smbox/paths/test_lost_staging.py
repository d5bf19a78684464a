from __future__ import annotations

import pytest

from smbox.errors import PeerLostError
from smbox.paths.staging import IDLE_MAX, once_more


class Lost:
    def __init__(self, times=1, **facts):
        self.calls = 0
        self.times = times
        self.facts = facts

    def __call__(self):
        self.calls += 1
        if self.calls <= self.times:
            raise PeerLostError("gone", **self.facts)
        return self.calls


@pytest.mark.parametrize("times", [1, IDLE_MAX])
def test_a_verb_whose_staging_was_lost_is_called_again(times):
    """As often as there may be another that is kept, and lost as well."""
    assert once_more(Lost(times, lost="staging", outcome="none")) == times + 1


def test_a_verb_whose_staging_is_lost_each_time_is_given_up():
    verb = Lost(times=99, lost="staging", outcome="none")
    with pytest.raises(PeerLostError):
        once_more(verb)
    assert verb.calls == IDLE_MAX + 1


@pytest.mark.parametrize(
    "facts", [{"outcome": "none"}, {"lost": "staging", "outcome": "unknown"}]
)
def test_a_verb_that_may_be_done_is_not(facts):
    verb = Lost(**facts)
    with pytest.raises(PeerLostError):
        once_more(verb)
    assert verb.calls == 1

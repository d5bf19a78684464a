from __future__ import annotations

import pytest

from smbox.errors import ConfigError, PeerLostError
from smbox.paths import whole


class Lost:
    def __init__(self, **facts):
        self.calls = 0
        self.facts = facts

    def __call__(self):
        self.calls += 1
        if self.calls == 1:
            raise PeerLostError("gone", **self.facts)
        return self.calls


def test_a_verb_whose_staging_was_lost_is_called_again():
    assert whole.once_more(Lost(lost="staging", outcome="not-sent")) == 2


@pytest.mark.parametrize(
    "facts", [{"outcome": "not-sent"}, {"lost": "staging", "outcome": "unknown"}]
)
def test_a_verb_that_may_be_done_is_not(facts):
    verb = Lost(**facts)
    with pytest.raises(PeerLostError):
        whole.once_more(verb)
    assert verb.calls == 1


def test_what_works_by_stripe_is_refused(box):
    region = box.create("w", shape=3, consistency="region")
    assert whole.changes_whole(region.info)
    with pytest.raises(ConfigError, match="rows works stripe by stripe"):
        whole.check_by_stripe(region.info, "rows")
    assert not whole.changes_whole(box.create("s", shape=3).info)

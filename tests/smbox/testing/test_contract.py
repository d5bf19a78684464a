"""The contract suite is complete, and detects a wrong box."""

from __future__ import annotations

import pytest

from smbox.testing import (
    contract_atomic,
    contract_names,
    contract_pgas,
    contract_rows,
    contract_vectors,
    contract_verbs,
    contract_waits,
)
from smbox.testing.contract import CHECKS, checks_of
from smbox.testing.solo import solo_box, solo_boxes


def test_every_check_is_in_the_suite():
    names = [check.__name__ for check in CHECKS]
    assert len(names) == len(set(names)) > 20
    for module in (
        contract_verbs,
        contract_rows,
        contract_vectors,
        contract_atomic,
        contract_names,
        contract_waits,
        contract_pgas,
    ):
        assert set(checks_of(module)) <= set(CHECKS)


class Wrong:
    """A box whose regions ignore one verb."""

    def __init__(self, box, verb):
        self._box, self._verb = box, verb

    def __getattr__(self, name):
        return getattr(self._box, name)

    def create(self, *arguments, **named):
        region = self._box.create(*arguments, **named)
        return WrongRegion(region, self._verb)

    def free(self, region):
        self._box.free(getattr(region, "_region", region))


class WrongRegion:
    def __init__(self, region, verb):
        self._region, self._verb = region, verb

    def __getattr__(self, name):
        if name == self._verb:
            return lambda *arguments, **named: None
        return getattr(self._region, name)


@pytest.mark.parametrize(
    ("verb", "check"),
    [
        ("put", contract_verbs.check_put_then_get),
        ("accumulate", contract_verbs.check_accumulate_sizes),
        ("elastic", contract_verbs.check_elastic),
        ("accumulate", contract_waits.check_concurrent_sums),
        ("accumulate_from", contract_vectors.check_accumulate_from),
        ("scale", contract_vectors.check_scale),
        ("dot", contract_vectors.check_dot),
        ("accumulate", contract_atomic.check_snapshots_among_writers),
        ("put", contract_pgas.check_put_signal),
    ],
)
def test_a_verb_that_does_nothing_is_found(verb, check):
    with solo_boxes() as opener, solo_box(opener) as box:
        check(box)
        with pytest.raises(AssertionError):
            check(Wrong(box, verb))

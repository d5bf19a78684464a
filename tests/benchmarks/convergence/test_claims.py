from __future__ import annotations

import pytest
from catalog import ROWS
from claims import FINDINGS, GOALS, Claim, Finding

CLAIM = Claim("easgd", "one", 1.5)


def both(made, behind: list[float], one: float = 0.70) -> dict:
    return {
        "one": [made("one", seed, one) for seed in range(len(behind))],
        "easgd": [made("easgd", seed, one - less / 100) for seed, less in enumerate(behind)],
    }


@pytest.mark.parametrize(
    ("behind", "verdict"),
    [
        ([1.0, 1.1, 0.9, 1.0, 1.0], "met"),
        ([1.4, 1.0, 1.9, 0.3, 2.6], "undecided"),
        ([1.4], "undecided"),
        ([3.0, 3.1, 2.9, 3.0, 3.0], "missed"),
    ],
)
def test_a_goal_is_met_only_where_the_interval_says_so(made, behind, verdict):
    results = both(made, behind)
    assert CLAIM.verdict(results) == verdict
    assert f"**{verdict}**" in CLAIM.words(results)


def test_without_runs_of_equal_seeds_nothing_is_said(made):
    assert CLAIM.verdict({}) == "no runs"
    results = {"one": [made("one", 0, 0.7)], "easgd": [made("easgd", 1, 0.7)]}
    assert CLAIM.verdict(results) == "no runs"


@pytest.mark.parametrize(
    ("behind", "words"),
    [
        ([1.0, 1.1, 0.9], "reproduced"),
        ([9.0, 9.1, 8.9], "**not reproduced**"),
        ([1.0], "undecided"),
    ],
)
def test_a_finding_is_as_good_as_its_claims(made, behind, words):
    finding = Finding("a paper", "something", (CLAIM,), "other data")
    assert finding.words(both(made, behind)) == words
    assert finding.words({}) == "no runs"
    assert Finding("a paper", "a speed", (), "one machine").words({}) == "not measured"


def test_every_claim_names_rows_of_equal_samples():
    claims = [*GOALS, *(claim for finding in FINDINGS for claim in finding.claims)]
    assert len(claims) > 10
    for claim in claims:
        behind, baseline = ROWS[claim.behind], ROWS[claim.baseline]
        assert (behind.part, behind.network) == (baseline.part, baseline.network)

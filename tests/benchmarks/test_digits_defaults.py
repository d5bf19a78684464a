from __future__ import annotations

import digits_defaults
import pytest
from digits_defaults import TABLES, Found, cell

FEW = 0.2  # epochs


def first(name: str) -> dict[str, float]:
    """The first setting of each that a table tries."""
    return {key: values[0] for key, values in TABLES[name][1].items()}


@pytest.mark.parametrize("name", TABLES)
def test_a_run_repeats_exactly(name: str):
    make = TABLES[name][0]
    found = [digits_defaults.train(make, first(name), seed, FEW) for seed in (1, 1, 2)]
    assert found[0] == found[1] != found[2]
    assert 0 <= found[0].accuracy <= 1


def test_a_cell_is_the_median_of_its_seeds():
    assert cell([Found(0.9, 0.5), Found(0.8, 0.25), Found(0.7, 0.75)]) == "80.0 / 0.5000"
    assert cell([Found(0.9, 0.5), None]) == "-"


def test_the_learning_rate_rises_and_falls():
    rates = [digits_defaults.schedule(2.0, done) for done in (0.0, 0.05, 0.525, 1.0)]
    assert rates == pytest.approx([0.0, 2.0, 1.0, 0.0])

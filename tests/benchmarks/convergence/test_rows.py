from __future__ import annotations

import json
from dataclasses import replace

import pytest
from catalog import ROWS
from rows import Settings

SETTINGS = Settings(ROWS["easgd"], 3)


@pytest.mark.parametrize(
    "change",
    [
        {"lr": 0.3},
        {"momentum": 0.1},
        {"workers": 8},
        {"options": {"period": 2}},
        {"scenario": "slow"},
        {"version": 99},
    ],
)
def test_a_changed_row_has_another_key(change: dict):
    other = replace(SETTINGS, row=replace(SETTINGS.row, **change))
    assert other.key != SETTINGS.key


@pytest.mark.parametrize(
    "change", [{"epochs": 1.0}, {"share": 0.5}, {"looks": 3}, {"judged_on": "validation"}]
)
def test_another_setting_of_the_run_has_another_key(change: dict):
    assert replace(SETTINGS, **change).key != SETTINGS.key


def test_how_a_row_is_shown_does_not_change_its_key():
    shown = replace(SETTINGS, row=replace(SETTINGS.row, title="another", table="another"))
    assert shown.key == SETTINGS.key


def test_settings_survive_json():
    told = json.loads(json.dumps(SETTINGS.as_json()))
    assert Settings.from_json(told) == SETTINGS
    assert Settings.from_json(told).file_name == SETTINGS.file_name
    assert SETTINGS.file_name.startswith("easgd-3-")


def test_samples_are_epochs_of_the_rows_part():
    few = replace(SETTINGS, row=replace(SETTINGS.row, part=0.25), epochs=8.0)
    assert few.samples(1000) == 2000

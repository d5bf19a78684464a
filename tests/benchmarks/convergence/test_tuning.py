from __future__ import annotations

from pathlib import Path

import pytest
import sweep
import tuning
from catalog import ROWS
from rows import Settings
from trainers import moving_rate_of, period_of


def test_variants_are_all_combinations_of_the_settings_that_the_algorithm_has():
    found = tuning.variants(ROWS["easgd"], {"moving_rate": [0.5, 0.7], "lr": [0.1, 0.2]})
    settings = [(row.lr, moving_rate_of(row)) for row in found]
    assert settings == [(0.1, 0.5), (0.1, 0.7), (0.2, 0.5), (0.2, 0.7)]
    assert [period_of(row) for row in tuning.variants(ROWS["easgd"], {"period": [1, 2]})] == [
        1,
        2,
    ]
    assert tuning.variants(ROWS["downpour"], {"moving_rate": [0.5]}) == [ROWS["downpour"]]


def test_tuning_judges_on_validation_pictures_and_other_seeds(
    tmp_path: Path, made, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    seen: list[Settings] = []

    def run(settings: Settings, cache: Path, told, timeout_s: float) -> dict:
        seen.append(settings)
        return made("easgd", settings.seed, settings.row.lr)

    monkeypatch.setattr(sweep, "run", run)
    tuning.main(["--only", "easgd", "--lr", "0.1,0.2", "--out", str(tmp_path)])
    assert {each.judged_on for each in seen} == {"validation"}
    final = {each.seed for each in sweep.wanted(sweep.arguments([]), list(ROWS))}
    assert final.isdisjoint({each.seed for each in seen})
    seen.clear()
    tuning.main(["--only", "easgd", "--lr=0.1", "--seeds=7", "--out", str(tmp_path)])
    assert [each.seed for each in seen] == [7]
    shown = capsys.readouterr().out
    assert "| easgd | 0.1 | 1 | 0.45 | 10.0 ± 0.0 | 3 |" in shown
    assert "| easgd | 0.2 | 1 | 0.45 | 20.0 ± 0.0 | 3 |" in shown

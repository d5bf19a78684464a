from __future__ import annotations

import sys
from pathlib import Path

import digits_seeds
import pytest
from digits_seeds import Found

from smbox_torch.demo.worker import Settings


def test_the_page_has_a_row_per_seed_and_the_means():
    found = {
        0: (Found(0.98, 1000, 2.0, 1 << 20), Found(0.99, 1000, 3.0)),
        7: (Found(0.97, 1000, 2.0, 1 << 20), Found(0.96, 1000, 3.0)),
    }
    page = digits_seeds.page(found, 40.0, Settings())
    assert "| 0 | 98.00% | 99.00% | -1.00 | 2.0 | 3.0 | 1.0 |" in page
    assert "HybridSGD 97.50 %, one process 97.50 %" in page
    assert "+0.00\npoints on average, from -1.00 to +1.00" in page
    assert "--epochs 40 --seeds 0,7`" in page


@pytest.mark.timeout(300)
def test_both_sides_train_on_equally_many_pictures(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    frameworks: str,  # with scikit-learn imported
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(sys, "executable", frameworks)
    page = tmp_path / "digits.md"
    digits_seeds.main(["--epochs", "1", "--seeds", "3", "--page", str(page)])
    assert "seed 3: HybridSGD" in capsys.readouterr().out
    settings = Settings(steps=digits_seeds.steps_of(Settings(), 1.0))
    assert abs(4 * settings.steps * settings.batch - 1437) <= 32
    assert f"{4 * settings.steps * settings.batch:,} pictures per run" in page.read_text()
    assert "| 3 | " in page.read_text()

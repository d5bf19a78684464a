from __future__ import annotations

from pathlib import Path

from drawing import _mean_curve, draw


def test_curves_are_averaged_point_by_point():
    x, y = _mean_curve([[[0.5, 0.2], [1.0, 0.4]], [[0.5, 0.4], [1.0, 0.6]]])
    assert x == [0.5, 1.0]
    assert [round(each, 6) for each in y] == [30.0, 50.0]


def test_a_picture_is_drawn_of_what_there_is(tmp_path: Path, made):
    runs = {name: [made(name, seed, 0.5) for seed in range(2)] for name in ("one", "ssp")}
    draw(runs, tmp_path / "two.png")
    assert (tmp_path / "two.png").stat().st_size > 1000

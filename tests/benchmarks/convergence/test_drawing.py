from __future__ import annotations

from pathlib import Path

from drawing import draw, mean_curve


def test_curves_are_averaged_look_by_look():
    curves = ([[0.5, 1.0, 0.2], [1.0, 2.0, 0.4]], [[0.5, 1.0, 0.4], [1.0, 2.0, 0.6]])
    x, y = mean_curve([{"curve": curve} for curve in curves])
    assert x == [0.5, 1.0]
    assert [round(each, 6) for each in y] == [30.0, 50.0]


def test_a_picture_is_drawn_of_what_there_is(tmp_path: Path, made):
    runs = {name: [made(name, seed, 0.5) for seed in range(2)] for name in ("one", "ssp-slow")}
    for name, results in (("some", runs), ("none", {})):
        draw(results, tmp_path / f"{name}.png")
        assert (tmp_path / f"{name}.png").stat().st_size > 1000

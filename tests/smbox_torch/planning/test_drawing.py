from __future__ import annotations

from pathlib import Path

import pytest

from smbox_torch.planning import drawing
from smbox_torch.planning.methods import Setup
from smbox_torch.planning.rates import Rates, predict


def test_each_method_is_a_line_over_the_workers(monkeypatch):
    pytest.importorskip("matplotlib")
    figures = []
    monkeypatch.setattr(drawing, "save", lambda figure, *_, **__: figures.append(figure))
    found = [
        predict(method, Setup(workers, 1e6, 1.0), Rates(1000.0, 0.0, 1.0), batch=8)
        for method in ("ring", "easgd")
        for workers in (10, 2)
    ]
    drawing.draw(found, "title", Path("unused.png"))
    (axes,) = figures[0].axes
    lines = {line.get_label(): list(line.get_xdata()) for line in axes.lines}
    assert lines == {"ring": [2, 10], "easgd": [2, 10]}
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")

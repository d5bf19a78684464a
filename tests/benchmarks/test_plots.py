from __future__ import annotations

from pathlib import Path

import plots
import pytest
from PIL import Image


def test_panels_are_written_at_the_end(tmp_path: Path):
    path = tmp_path / "a.png"
    with plots.panels(path, (2, 3), (3.0, 2.0), dpi=50) as lines:
        assert lines.shape == (2, 3)
        assert not path.exists()
    with Image.open(path) as picture:
        assert (picture.format, picture.size) == ("PNG", (150, 100))


def test_a_plot_that_fails_leaves_the_file_as_it_was(tmp_path: Path):
    path = tmp_path / "a.png"
    path.write_bytes(b"before")
    with pytest.raises(ValueError, match="no data"), plots.panels(path, (1, 1), (3.0, 2.0)):
        raise ValueError("no data")
    assert path.read_bytes() == b"before"

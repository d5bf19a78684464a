from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pages
import pytest
from sandblaster import cli, page
from sandblaster.ways import WAYS

SIZE = 100_000


@pytest.mark.timeout(120)
def test_both_ways_do_the_same_and_commands_send_less(tmp_path: Path):
    folder = tmp_path / "results"
    words = ["--sizes", str(SIZE), "--iterations", "3", "--out", str(folder)]
    assert cli.main([*words, "--only", "vectors-*"]) == 0
    vectors = folder / f"vectors-{SIZE}.json"
    assert list(folder.iterdir()) == [vectors]
    before = vectors.stat().st_mtime_ns
    assert cli.main(words) == 0
    assert vectors.stat().st_mtime_ns == before  # not measured again
    vectors = json.loads(vectors.read_text())
    commands = json.loads((folder / f"commands-{SIZE}.json").read_text())
    np.testing.assert_allclose(commands["losses"], vectors["losses"], rtol=1e-2)
    assert commands["losses"][-1] < 0.01 * commands["losses"][0]
    assert len(commands["seconds"]) == 3
    assert vectors["nbytes"] > 3 * 2 * 4 * SIZE  # a gradient and the parameters each time
    assert commands["nbytes"] < vectors["nbytes"] / 50

    path = tmp_path / page.PAGE
    path.write_text((pages.DOCS / page.PAGE).read_text())
    assert cli.main([*words, "--page", "--docs", str(tmp_path)]) == 0
    text = path.read_text()
    for way in WAYS:
        assert f"| 100,000 | {way} | " in text
    assert "| 1,000,000 |" not in text
    assert (tmp_path / page.PICTURE).stat().st_size > 1000


def test_a_page_without_rows_says_so(tmp_path: Path):
    path = tmp_path / page.PAGE
    path.write_text("# Page\n\n<!-- begin rows -->\n\nold\n\n<!-- end rows -->\n\nEnd.\n")
    page.write([], tmp_path)
    assert pages.NOT_MEASURED in path.read_text()
    assert "old" not in path.read_text()
    assert path.read_text().endswith("End.\n")
    assert not (tmp_path / page.PICTURE).exists()

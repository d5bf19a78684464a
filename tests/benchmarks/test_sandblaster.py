from __future__ import annotations

import json

import numpy as np
import pytest
import sandblaster

SIZE = 100_000


@pytest.mark.timeout(120)
def test_both_ways_do_the_same_and_commands_send_less(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("# Page\n\n<!-- begin rows -->\n\nNothing.\n\n<!-- end rows -->\n\nEnd.\n")
    folder = tmp_path / "results"
    words = ["--sizes", str(SIZE), "--iterations", "3", "--results", str(folder)]
    assert sandblaster.main([*words, "--only", "vectors-*"]) == 0
    kept = folder / f"vectors-{SIZE}.json"
    assert [path.name for path in folder.iterdir()] == [kept.name]
    before = kept.stat().st_mtime_ns
    assert sandblaster.main([*words, "--page", str(page)]) == 0
    assert kept.stat().st_mtime_ns == before  # not measured again
    vectors = json.loads(kept.read_text())
    commands = json.loads((folder / f"commands-{SIZE}.json").read_text())
    np.testing.assert_allclose(commands["losses"], vectors["losses"], rtol=1e-2)
    assert commands["losses"][-1] < 0.01 * commands["losses"][0]
    assert len(commands["seconds"]) == 3
    assert vectors["nbytes"] > 3 * 2 * 4 * SIZE  # a gradient and the parameters each time
    assert commands["nbytes"] < vectors["nbytes"] / 50
    text = page.read_text()
    assert "Nothing." not in text
    assert "End." in text
    for way in sandblaster.WAYS:
        assert f"| 100,000 | {way} | " in text
    assert page.with_suffix(".png").stat().st_size > 1000

from __future__ import annotations

from pathlib import Path

import pytest

from smbox.errors import ConfigError
from smbox_torch.launching.logs import Logs


def test_each_rank_has_a_file_that_holds_its_lines_at_once(tmp_path: Path):
    folder = tmp_path / "of" / "today"
    logs = Logs(folder, range(2))
    logs.write(1, ["größe", "end"])
    assert (folder / "rank1.log").read_text() == "größe\nend\n"
    assert (folder / "rank0.log").read_text() == ""
    logs.close()
    Logs(folder, range(2)).close()
    assert (folder / "rank1.log").read_text() == ""


@pytest.mark.parametrize("what", ["file", "folder in the way"])
def test_logs_that_cannot_be_written_are_refused(tmp_path: Path, what: str):
    folder = tmp_path / "logs"
    if what == "file":
        folder.write_text("")
    else:
        (folder / "rank1.log").mkdir(parents=True)
    with pytest.raises(ConfigError, match="--log-dir"):
        Logs(folder, range(2))

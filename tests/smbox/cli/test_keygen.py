"""``smbox keygen``: what it refuses."""

from __future__ import annotations

import pytest

from smbox.cli.main import main


@pytest.mark.parametrize("days", ["0", "-1", "3000000", "1000000000"])
def test_days_that_no_calendar_has_are_refused_and_nothing_is_made(tmp_path, capsys, days):
    with pytest.raises(SystemExit) as raised:
        main(["keygen", str(tmp_path / "keys"), "--client", "a", "--days", days])
    assert raised.value.code == 2
    assert "days" in capsys.readouterr().err
    assert not (tmp_path / "keys").exists()

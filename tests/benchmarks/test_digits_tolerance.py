from __future__ import annotations

import digits_tolerance
import pytest

from smbox_torch.hogwild import hogwild_pp


@pytest.mark.timeout(300)
def test_a_larger_tolerance_writes_fewer_elements_and_holds_more_back(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(hogwild_pp, "exchange", hogwild_pp.exchange)  # to be set back
    monkeypatch.setattr(digits_tolerance, "DELAYS", (4,))
    digits_tolerance.main(["--epochs", "0.5"])
    rows = [line.split("|")[3:5] for line in capsys.readouterr().out.splitlines()[2:]]
    written, held = (
        [float(cell.strip(" %")) for cell in each] for each in zip(*rows, strict=True)
    )
    assert len(written) == 4
    assert written == sorted(written, reverse=True)
    assert held[0] == 0
    assert held == sorted(held)


def test_epochs_without_an_exchange_are_refused(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(hogwild_pp, "exchange", hogwild_pp.exchange)  # to be set back
    with pytest.raises(SystemExit):
        digits_tolerance.main(["--epochs", "0.1"])
    assert "--epochs 0.1 is too short: no exchange with delay 64" in capsys.readouterr().err

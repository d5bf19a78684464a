from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from smbox_torch.completion import Completion


@pytest.fixture
def waiting_opens(monkeypatch: pytest.MonkeyPatch) -> Callable[[threading.Event], None]:
    """``waiting_opens(gate)``: whoever waits for the exchange in flight opens the gate."""
    wait = Completion.wait

    def opens(gate: threading.Event) -> None:
        monkeypatch.setattr(Completion, "wait", lambda ended: (gate.set(), wait(ended)))

    return opens

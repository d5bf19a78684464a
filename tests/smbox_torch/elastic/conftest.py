from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from smbox_torch.elastic import update_thread


@pytest.fixture
def waiting_opens(monkeypatch: pytest.MonkeyPatch) -> Callable[[threading.Event], None]:
    """``waiting_opens(gate)``: whoever waits for the exchange in flight opens the gate."""
    wait = update_thread.wait

    def opens(gate: threading.Event) -> None:
        monkeypatch.setattr(update_thread, "wait", lambda tasks: (gate.set(), wait(tasks)))

    return opens

from __future__ import annotations

import pytest
from lab import needs


def test_a_missing_program_is_named_with_its_package(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(needs, "PROGRAMS", {"no-such-program": "no-such-package"})
    assert needs.missing() == "programs are missing: no-such-program; install no-such-package"


def test_namespaces_that_cannot_be_made_are_explained(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(needs, "PROGRAMS", {})  # the machine may lack some
    monkeypatch.setattr(needs, "TRIAL", "echo 'no such qdisc' >&2; exit 1")
    told = needs.missing()
    assert "sch_tbf" in told
    assert "--privileged" in told

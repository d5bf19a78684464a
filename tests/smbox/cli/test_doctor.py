"""The output of ``smbox doctor``."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

import smbox
from smbox.cli import doctor, main, orphans
from smbox.cli.orphans import NodeSegments
from smbox.errors import AccessDeniedError, NativeError
from smbox.memory import segment
from smbox.native import library
from smbox.native.library import Library

pytestmark = pytest.mark.usefixtures("quick_starts")


def run(capsys, *argv: str) -> tuple[int, str]:
    with pytest.raises(SystemExit) as ended:
        main.main(["doctor", *argv])
    return int(ended.value.code or 0), capsys.readouterr().out


def test_without_an_address_it_tells_of_host_and_releases(capsys, monkeypatch):
    monkeypatch.delenv("SMBOX_ADDRESS", raising=False)
    code, out = run(capsys)
    assert code == 0
    assert all(
        word in out for word in ("numpy", "shared memory", "native library", "SMBOX_ADDRESS")
    )


def test_with_a_node_it_tells_how_it_is_reached(capsys):
    with smbox.local(memory="64MiB") as box:
        code, out = run(capsys, "--address", box.address, "--json")
    told = json.loads(out)
    assert (code, told["node"]["reachable"], told["node"]["transport"]) == (0, True, "shm")


def test_it_tells_why_not_faster(monkeypatch):
    monkeypatch.setenv("SMBOX_TRANSPORT", "tcp")
    with smbox.local(memory="64MiB") as box:
        told, _ = doctor.about_node(box.address)
    assert told["transport"] == "tcp"
    assert told["because"]


def test_a_node_that_does_not_answer_is_exit_code_3(capsys, monkeypatch):
    monkeypatch.setenv("SMBOX_TIMEOUT_S", "0.2")
    code, out = run(capsys, "--address", "ipc:///tmp/no-smbox-node-listens-here", "--json")
    assert (code, json.loads(out)["node"]["reachable"]) == (3, False)


def test_a_node_that_says_no_was_reached(monkeypatch):
    def refuse(_address):
        raise AccessDeniedError("not you")

    monkeypatch.setattr(doctor, "connect", refuse)
    facts, code = doctor.about_node("tcp://127.0.0.1:1")
    assert (facts["reachable"], code) == (True, 1)


def test_the_node_of_the_option_is_asked_and_else_that_of_the_environment(monkeypatch):
    def refuse(address):
        raise AccessDeniedError(address)

    monkeypatch.setattr(doctor, "connect", refuse)
    monkeypatch.setenv("SMBOX_ADDRESS", "tcp://127.0.0.1:2")
    for given, asked in (
        ("tcp://127.0.0.1:1", "tcp://127.0.0.1:1"),
        (None, "tcp://127.0.0.1:2"),
    ):
        facts, _ = doctor.about_node(given)
        assert facts["address"] == asked
        assert asked in facts["error"]


def test_impossible_settings_are_exit_code_2(capsys, monkeypatch):
    monkeypatch.setenv("SMBOX_TIMEOUT_S", "soon")
    code, out = run(capsys, "--address", "tcp://127.0.0.1:1")
    assert code == 2
    assert "SMBOX_TIMEOUT_S is not a number" in out
    assert "reachable" not in out  # no node was asked


def test_the_native_library_and_its_compiler_are_named(monkeypatch):
    built = Library(None, None, Path("/x/_smbox-0123456789ab.so"), "gcc 12.2.0")
    monkeypatch.setattr(library, "why_not_native", lambda _environ: None)
    monkeypatch.setattr(library, "load", lambda: built)
    told = doctor.about_host()["native library"]
    assert all(word in told for word in ("gcc 12.2.0", "/x/_smbox-0123456789ab.so"))


def test_why_there_is_no_native_library_is_said(monkeypatch):
    with monkeypatch.context() as patch:
        patch.setenv("SMBOX_NO_NATIVE", "1")
        assert "SMBOX_NO_NATIVE=1" in doctor.about_host()["native library"]

    def refuse(_environ):
        raise NativeError("stale: make native")

    monkeypatch.setattr(library, "why_not_native", refuse)
    assert "make native" in doctor.about_host()["native library"]


@pytest.fixture
def settings(monkeypatch):
    """``settings(**values)``: what is said of these variables and no other ones."""

    def told(**values: str) -> str:
        monkeypatch.setattr(doctor.os, "environ", values)
        return doctor.about_host()["settings"]

    return told


def test_settings_are_told_and_misspelt_ones_pointed_at(settings):
    told = settings(SMBOX_TIMEOUT_S="3", SMBOX_ADRESS="x", HOME="/")
    assert told == "SMBOX_TIMEOUT_S=3, SMBOX_ADRESS (unknown: misspelt?)"
    assert settings() == "no SMBOX_ variable is set"


def test_every_setting_of_the_manual_is_known(settings):
    manual = (Path(__file__).parents[3] / "docs" / "cli.md").read_text()
    names = set(re.findall(r"`(SMBOX_[A-Z_]+)`", manual))
    assert {"SMBOX_TIMEOUT_S", "SMBOX_RANK", "SMBOX_WORKER_RESTART_COUNT"} <= names
    assert "unknown" not in settings(**dict.fromkeys(names, "1"))


def test_what_is_not_installed_is_said(monkeypatch):
    monkeypatch.setattr(doctor, "PACKAGES", ("no-such-package-of-ours",))
    assert doctor.versions()["no-such-package-of-ours"] == "not installed"


def test_little_room_and_dead_memory_come_with_advice(monkeypatch):
    dead = NodeSegments("a", ("smbox.a.node",), 3 << 20, 1, "dead")
    monkeypatch.setattr(segment, "room_nbytes", lambda: 64 << 20)
    monkeypatch.setattr(orphans, "survey", lambda: [dead])
    told = doctor.about_host()
    assert "--shm-size" in told["shared memory"]
    assert "smbox gc" in told["dead memory"]
    kept = NodeSegments("a", ("smbox.a.node",), 3 << 20, 0, "kept")
    monkeypatch.setattr(orphans, "survey", lambda: [kept])
    monkeypatch.setattr(segment, "room_nbytes", lambda: 64 << 30)
    assert doctor.about_host()["dead memory"] == "none"
    assert "--shm-size" not in doctor.about_host()["shared memory"]


def test_a_folder_that_cannot_be_written_comes_with_the_command_to_change_it(monkeypatch):
    def is_read_only(path, mode):
        return (path, mode) != (segment.DIRECTORY, os.W_OK)

    monkeypatch.setattr(os, "access", is_read_only)
    told = doctor.about_host()["shared memory"]
    assert "cannot write" in told
    assert "remount,rw /dev/shm" in told


def test_memory_that_cannot_be_looked_at_is_no_error(monkeypatch):
    def refuse(*_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(segment, "room_nbytes", refuse)
    monkeypatch.setattr(orphans, "survey", refuse)
    told = doctor.about_host()
    assert told["shared memory"].startswith("none: ")
    assert told["dead memory"].startswith("unknown: ")
    monkeypatch.undo()
    monkeypatch.setattr(os, "listdir", refuse)
    assert doctor.about_host()["dead memory"].startswith("unknown: ")

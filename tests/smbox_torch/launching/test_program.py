from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from smbox.errors import ConfigError
from smbox_torch.launching.program import command_of


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    package = tmp_path / "trainings"
    package.mkdir()
    (package / "__init__.py").write_text("print('text')")
    (package / "digits.py").write_text("")
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "__init__.py").write_text("raise RuntimeError('half done')")
    runnable = package / "all"
    runnable.mkdir()
    (runnable / "__main__.py").write_text("")
    (tmp_path / "train.py").write_text("")
    tool = tmp_path / "tool"
    tool.write_text("#!/bin/sh\n")
    tool.chmod(0o755)
    (tmp_path / "notes").write_text("")
    return tmp_path


@pytest.mark.parametrize(
    "words",
    [
        ("train.py", "--lr", "1"),
        ("-m", "trainings.digits", "--nodes", "3"),
        ("-m", "trainings.all"),
        ("-m", "train"),
        ("-m", "json.tool"),
    ],
)
def test_a_python_file_or_module_is_run_by_this_python(words: tuple[str, ...], capfd):
    assert command_of(words, os.environ) == (sys.executable, *words)
    assert capfd.readouterr() == ("", "")


def test_anything_else_is_a_program(here: Path):
    assert command_of(("./tool", "x"), os.environ) == ("./tool", "x")
    assert command_of(("tool",), {"PATH": str(here)}) == ("tool",)
    assert command_of(("sh", "-c", "true"), os.environ) == ("sh", "-c", "true")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ((), "name a script"),
        (("nowhere.py",), r"no script 'nowhere\.py' in .*path"),
        (("trainings",), r"no program 'trainings'"),
        (("tool",), r"chmod \+x on it and give its path"),
        (("./notes",), r"chmod \+x"),
        (("no-such-program",), r"'no-such-program'.*PATH.*-m"),
        (("-m",), "package.module"),
        (("-m", "nowhere"), r"no module 'nowhere'.*PYTHONPATH"),
        (("-m", "trainings.nowhere"), "no module"),
        (("-m", "train.py"), r"without '\.py'"),
        (("-m", "json.tool.more"), "no module"),
        (("-m", "trainings"), "__main__"),
        (("-m", "broken.part"), r"no module 'broken\.part'.*RuntimeError: half done"),
        (("-m", ""), "no module"),
        (("-m", ".digits"), "no module"),
    ],
)
def test_what_is_not_there_is_an_error_that_says_what_to_do(words: tuple[str, ...], says: str):
    with pytest.raises(ConfigError, match=says):
        command_of(words, {"PATH": "/usr/bin:/bin"})


def test_a_script_that_cannot_be_looked_at_is_none():
    """As in a folder that this user cannot enter."""
    with pytest.raises(ConfigError, match="there is no script"):
        command_of(("x" * 300 + ".py",), os.environ)
    with pytest.raises(ConfigError, match="there is no program"):
        command_of(("x" * 300,), os.environ)


def test_no_script_is_in_a_folder_that_was_removed(tmp_path: Path, monkeypatch):
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with pytest.raises(ConfigError, match=r"gone \(deleted\): give its path"):
        command_of(("train.py",), os.environ)

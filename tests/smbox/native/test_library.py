"""Loading the native library: once, and only if it was built from its sources."""

from __future__ import annotations

import ctypes
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import smbox
from smbox.errors import NativeError
from smbox.native import compiling, library

LOADED = library.why_not_native() is None
needs_library = pytest.mark.skipif(not LOADED, reason="no native library here: make native")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for source in compiling.sources():
        shutil.copy(source, tmp_path)
    return tmp_path


@needs_library
def test_one_library_by_two_handles():
    loaded = library.load()
    assert loaded is library.load()
    assert isinstance(loaded.short, ctypes.PyDLL)
    assert not isinstance(loaded.long, ctypes.PyDLL)
    assert loaded.file.name == compiling.file_name()


@needs_library
def test_the_build_is_told():
    built = library.load()
    assert built.compiler
    assert built.file.stem.endswith(compiling.source_hash())


def test_a_missing_library_is_no_error_but_a_reason(folder: Path):
    told = library.why_not_native({}, folder)
    assert "make native" in told
    assert "pip install -e ." in told


def test_a_library_of_these_sources_is_found(folder: Path):
    (folder / compiling.file_name(folder)).touch()
    assert library.why_not_native({}, folder) is None


def test_a_stale_library_is_refused_with_the_command_that_builds_it(folder: Path):
    old = folder / compiling.file_name(folder)
    old.touch()
    (folder / "read.c").write_text("/* changed */")
    with pytest.raises(NativeError, match="make native") as caught:
        library.why_not_native({}, folder)
    assert caught.value.facts == {"found": old.name, "expected": compiling.file_name(folder)}


def test_sources_that_cannot_be_read_are_an_error(folder: Path, no_more_files):
    (folder / compiling.file_name(folder)).touch()
    with no_more_files(), pytest.raises(NativeError, match="Too many open files"):
        library.why_not_native({}, folder)


def test_a_library_of_another_machine_is_not_a_stale_one(folder: Path):
    other = "aarch64" if platform.machine() == "x86_64" else "x86_64"
    (folder / compiling.file_name(folder, other)).touch()
    assert "not built" in library.why_not_native({}, folder)


def test_it_can_be_switched_off(monkeypatch):
    monkeypatch.setenv("SMBOX_NO_NATIVE", "1")
    library.load.cache_clear()
    try:
        assert "SMBOX_NO_NATIVE=1" in library.why_not_native()
        with pytest.raises(NativeError, match="unset it"):
            library.load()
    finally:
        library.load.cache_clear()


def test_a_library_that_cannot_be_loaded_is_an_error(monkeypatch, folder: Path):
    (folder / compiling.file_name(folder)).write_bytes(b"no ELF file")
    monkeypatch.setattr(compiling, "FOLDER", folder)
    monkeypatch.setattr(library, "why_not_native", lambda: None)
    library.load.cache_clear()
    try:
        with pytest.raises(NativeError, match="cannot be loaded"):
            library.load()
    finally:
        library.load.cache_clear()


def run(tree: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *arguments]
    return subprocess.run(
        command, cwd=tree, capture_output=True, text=True, timeout=60, check=False
    )


def test_a_changed_tree_refuses_its_library_until_it_is_built_again(
    quick_cc: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Uses a copied tree, like an editable install, in other processes."""
    monkeypatch.setenv("CC", quick_cc)
    shutil.copytree(
        Path(smbox.__file__).parent,
        tmp_path / "smbox",
        ignore=shutil.ignore_patterns("__pycache__", "*.so"),
    )
    build = ("-P", "smbox/native/compiling.py")  # what `make native` runs
    load = ("-c", "from smbox.native.library import load; print(load().file)")
    old = run(tmp_path, *build).stdout
    assert run(tmp_path, *load).stdout == old
    with (tmp_path / "smbox/native/read.c").open("a") as source:
        source.write("/* changed */\n")
    refused = run(tmp_path, *load)
    assert refused.returncode == 1
    assert "NativeError" in refused.stderr
    assert "pip install -e ." in refused.stderr
    new = run(tmp_path, *build).stdout
    assert run(tmp_path, *load).stdout == new != old

"""Tests of the build: the contents of wheel and sdist, and the required compiler."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest

from smbox.native import compiling

pytest.importorskip("hatchling", reason="the extra `dev` brings it")

ROOT = Path(__file__).resolve().parent.parent
NAMES = ("pyproject.toml", "hatch_build.py", "README.md", "LICENSE", ".gitignore")


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a copy of the sources, with libraries of earlier builds in it."""
    copy = tmp_path_factory.mktemp("tree")
    for folder in ("smbox", "memnode", "clients"):
        ignored = shutil.ignore_patterns("__pycache__", "*.so")
        shutil.copytree(ROOT / folder, copy / folder, ignore=ignored)
    for name in NAMES:
        shutil.copy(ROOT / name, copy)
    (copy / "smbox/native/_smbox-x86_64-000000000000.so").touch()
    (copy / "smbox/native/_smbox-aarch64-000000000000.so").touch()
    return copy


def backend(tree: Path, call: str, **environ: str) -> str:
    """Call the build backend in a new process; return the last line of its output."""
    code = f"from hatchling import build; print(build.{call})"
    environment = {name: text for name, text in os.environ.items() if name != "SMBOX_NO_NATIVE"}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tree, env=environment | environ,
        capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1]


def wheel_of(tree: Path, folder: Path, **environ: str) -> tuple[str, set[str]]:
    """Build a wheel into a folder; return its name and the names of its files."""
    name = backend(tree, f"build_wheel({str(folder)!r})", **environ)
    with zipfile.ZipFile(folder / name) as wheel:
        return name, set(wheel.namelist())


@pytest.fixture(scope="module")
def wheel(quick_cc: str, tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the path of a wheel with the library."""
    folder = tmp_path_factory.mktemp("wheel")
    return folder / wheel_of(tree, folder, CC=quick_cc)[0]


def test_a_wheel_holds_the_library_and_names_the_platform(wheel: Path):
    with zipfile.ZipFile(wheel) as archive:
        name, files = wheel.name, set(archive.namelist())
    tag = sysconfig.get_platform().replace("-", "_").replace(".", "_")
    assert name.endswith(f"-py3-none-{tag}.whl")
    assert {file for file in files if file.endswith(".so")} == {
        f"smbox/native/{compiling.file_name()}"
    }
    roots = {file.split("/")[0] for file in files if ".dist-info" not in file}
    assert roots == {"smbox", "memnode", "smbox_torch"}


def test_an_installed_wheel_loads_its_library(wheel: Path, tmp_path: Path):
    file, _ = loaded(wheel, tmp_path)
    assert file.parent == tmp_path / "smbox" / "native"


@pytest.mark.usefixtures("zig_cache")
def test_a_wheel_that_was_built_without_a_compiler_loads_its_library(
    tree: Path, tmp_path: Path
):
    pytest.importorskip("ziglang", reason="the extra `dev` brings it")
    empty, installed = tmp_path / "empty", tmp_path / "installed"
    empty.mkdir()
    name, _ = wheel_of(tree, tmp_path, PATH=str(empty), CC="")
    file, compiler = loaded(tmp_path / name, installed)
    assert file.parent == installed / "smbox" / "native"
    assert "zig" in compiler or "clang" in compiler


def loaded(wheel: Path, folder: Path) -> tuple[Path, str]:
    """Install a wheel into a folder; return the library that it loads, and its compiler."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    code = (
        "from smbox.native.library import load; print(load().file, load().compiler, sep='\\n')"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", code], env=os.environ | {"PYTHONPATH": str(folder)},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    file, compiler = done.stdout.splitlines()
    return Path(file), compiler


def test_without_a_native_library_the_wheel_is_pure(tree: Path, tmp_path: Path):
    name, files = wheel_of(tree, tmp_path, SMBOX_NO_NATIVE="1")
    assert name.endswith("-py3-none-any.whl")
    assert not any(file.endswith(".so") for file in files)


def test_the_sdist_holds_hook_and_sources_and_no_library(tree: Path, tmp_path: Path):
    name = backend(tree, f"build_sdist({str(tmp_path)!r})")
    with tarfile.open(tmp_path / name) as sdist:
        files = {file.partition("/")[2] for file in sdist.getnames()}
    sources = {f"smbox/native/{path.name}" for path in compiling.sources()}
    assert sources | {"hatch_build.py", "smbox/native/compiling.py"} <= files
    assert not any(file.endswith(".so") for file in files)


def test_an_editable_build_puts_the_library_beside_its_sources(
    quick_cc: str, tree: Path, tmp_path: Path
):
    copy = tmp_path / "tree"
    shutil.copytree(tree, copy)
    name = backend(copy, f"build_editable({str(tmp_path)!r})", CC=quick_cc)
    native = copy / "smbox" / "native"
    mine = {path.name for path in native.glob(f"*{platform.machine()}*.so")}
    assert mine == {compiling.file_name()}
    with zipfile.ZipFile(tmp_path / name) as wheel:
        assert not any(file.endswith(".so") for file in wheel.namelist())


@pytest.mark.parametrize("target", ["wheel", "editable"])
def test_ziglang_is_required_where_there_is_no_compiler(
    tree: Path, tmp_path: Path, target: str
):
    call = f"get_requires_for_build_{target}()"
    without = {"PATH": str(tmp_path), "CC": ""}
    assert compiling.ZIG_REQUIREMENT in backend(tree, call, **without)
    assert "ziglang" not in backend(tree, call, **without, SMBOX_NO_NATIVE="1")
    assert "ziglang" not in backend(tree, call, CC="some-cc")


def test_an_sdist_requires_no_compiler(tree: Path, tmp_path: Path):
    told = backend(tree, "get_requires_for_build_sdist()", PATH=str(tmp_path), CC="")
    assert told == "[]"

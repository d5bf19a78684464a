from __future__ import annotations

import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from smbox.memory import compile_cache
from smbox.memory.compile_cache import SOURCES, fingerprint, in_use

config = pytest.importorskip("numba", reason="what is cached is numba's").config
FOLDER = Path(compile_cache.__file__).parent


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    for name in SOURCES:
        shutil.copy(FOLDER / name, tmp_path / name)
    return tmp_path


@pytest.mark.parametrize("name", SOURCES)
def test_the_fingerprint_changes_with_every_source(sources: Path, name: str):
    before = fingerprint(sources)
    assert before == fingerprint()
    with (sources / name).open("a") as source:
        source.write("\n")
    assert fingerprint(sources) != before


def test_every_compiled_module_is_a_source():
    using = {path.name for path in FOLDER.glob("*.py") if "from numba" in path.read_text()}
    assert {"compiled.py", "compiled_runs.py", "compiled_ops.py"} <= using <= set(SOURCES)


def test_the_place_is_set_inside_the_block_only(monkeypatch, tmp_path: Path):
    monkeypatch.setattr(config, "CACHE_DIR", str(tmp_path))
    with in_use() as place:
        assert str(place) == config.CACHE_DIR
        assert place.parent == tmp_path
        assert place.is_dir()
    assert str(tmp_path) == config.CACHE_DIR


def test_without_a_wish_it_is_the_users_cache(monkeypatch, tmp_path: Path):
    monkeypatch.setattr(config, "CACHE_DIR", "")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with in_use() as place:
        assert place == tmp_path / f"smbox-{fingerprint()}"


def test_where_nothing_can_be_kept_the_place_is_temporary(monkeypatch, tmp_path: Path):
    (tmp_path / "file").touch()
    monkeypatch.setattr(config, "CACHE_DIR", str(tmp_path / "file" / "below"))
    with in_use() as place:
        assert place.is_dir()
    assert not place.exists()


LOAD = """
from smbox.memory import accel
engine = accel.load()
print(sum(sum(function.stats.cache_hits.values()) for function in engine if function))
"""


def test_a_second_process_need_not_compile(monkeypatch):
    monkeypatch.delenv("SMBOX_ACCEL", raising=False)
    hits = [
        subprocess.run(
            [sys.executable, "-c", LOAD],
            check=True,
            capture_output=True,
            text=True,
            timeout=100,
        ).stdout
        for _ in range(2)
    ]
    assert int(hits[1]) == (5 if platform.machine() in {"x86_64", "AMD64"} else 2)

"""The library's memory orders suffice in every execution that RC11 permits.

``memory_order/explorer.c`` explores what threads do to each other, ``memory_order/kills.c`` the
memory that a killed writer leaves. Each weakened copy of the sources must make one of them
fail. Litmus tests check the explorer's memory model.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from smbox.native import compiling

FOLDER = Path(__file__).with_name("memory_order")
pytestmark = pytest.mark.timeout(400)  # zig builds its C library once

KILLS, SCENARIOS, LITMUS = "kills", "scenarios", "litmus"  # programs

STATES_MIN = {  # a little less than there were: an exploration that ends early must not pass
    "reader": 500,
    "reader_two_commits": 7500,
    "reader_two_blocks": 500,
    "two_writers": 33_000,
    "recovery": 13_000,
    "recovery_two_commits": 230_000,
    "recovery_two_blocks": 14_000,
    "killed_recoverer": 400_000,
    "version": 20_000,
    "wait": 2500,
    "signal": 3000,
    "lock_free": 450,
}
MEMORIES_MIN = 200_000

RESULTS = {  # of a litmus test: how many RC11 permits, and one that it forbids
    "mp": (4, None),
    "mp_release": (4, None),
    "mp_acquire": (4, None),
    "mp_both": (3, "10"),
    "mp_release_fence": (4, None),
    "mp_acquire_fence": (4, None),
    "mp_fences": (3, "10"),
    "sb": (4, None),
    "lb": (3, "11"),
    "iriw": (16, None),
    "corr": (3, "10"),
    "wrc": (7, "110"),
    "release_sequence": (5, "20"),
}

WEAKENED = {  # file, text with one order, and what must find that it has become relaxed
    "the reader's load": ("read.c", "before = load_acquire(sequence)", "reader"),
    "the reader's fence": ("read.c", "fence(memory_order_acquire);", "reader"),
    "the version's load": ("read.c", "commits += load_acquire(", "wait"),
    "the fence before the kernel": (
        "commit.c",
        "fence(memory_order_release);\n    if (order->kernel == SCATTER_PUT",
        "reader",
    ),
    "the fence before the kernel, without locks": (
        "commit.c",
        "fence(memory_order_release);\n    if (order->kernel == SCATTER_PUT",
        "lock_free",
    ),
    "the fence before an undo": (
        "commit.c",
        "fence(memory_order_release);\n    copy(region->data",
        "recovery_two_commits",
    ),
    "the count without locks": (
        "commit.c",
        "SEQUENCE_COMMIT,\n                              memory_order_release",
        "lock_free",
    ),
    "the close": ("commit.c", "store_release(&row->sequence,\n", "reader"),
    "the close of an undo": ("commit.c", "store_release(&row->sequence, (seq", "recovery"),
    "the close of a recovered commit": (
        "commit.c",
        "store_release(&row->sequence, sequence + SEQUENCE_COMMIT",
        "recovery",
    ),
    "the open": ("commit.c", "store_release(&row->sequence, load", KILLS),
    "progress": ("commit.c", "store_release(&slot->progress", KILLS),
    "COMMITTED": ("commit.c", "store_release(&slot->state,\n", KILLS),
    "FREE": (
        "commit.c",
        "store_release(&slot->state, load_relaxed(&slot->state) - SLOT_COMMITTED",
        KILLS,
    ),
    "the lock": ("locks.c", "to, memory_order_acq_rel", "two_writers"),
    "the unlock": ("locks.c", "store_release(&region->table[stripe].holder", "two_writers"),
    "applied": (
        "commit.c",
        "store_release(&channel->row->applied, commit->number);\n    for",
        KILLS,
    ),
}


Build = Callable[[Path, Path, str], Path]


@pytest.fixture(scope="module")
def build(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Build:
    """Return ``build(folder, sources, name)``: it compiles a program with these sources."""
    compiler = compiling.system_compiler()
    if compiler is None and importlib.util.find_spec("ziglang") is None:
        pytest.skip("this machine has no C compiler, and ziglang is not installed")
    assert pytestconfig.cache is not None
    zig_cache = str(pytestconfig.cache.mkdir("zig"))
    caches = {"ZIG_GLOBAL_CACHE_DIR": zig_cache, "ZIG_LOCAL_CACHE_DIR": zig_cache}

    def compile_c(target: Path, *words: str | Path) -> Path:
        command = [*(compiler or compiling.zig_compiler()), "-std=c11", *map(str, words)]
        done = subprocess.run(
            [*command, "-o", str(target)],
            env=os.environ | caches,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return target

    made = tmp_path_factory.mktemp("explorer")
    objects = [
        compile_c(made / f"{name}.o", "-O2", "-c", FOLDER / f"{name}.c")
        for name in ("explorer", "model")
    ]

    def build(folder: Path, sources: Path, name: str) -> Path:
        more = [] if name == KILLS else objects
        file = FOLDER / f"{name}.c"
        return compile_c(folder / name, "-O0", f"-I{sources}", file, *more, "-lm")

    return build


@pytest.fixture(scope="module")
def explorer(build: Build, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the explorer of the library's sources as they are."""
    return build(tmp_path_factory.mktemp("shipped"), compiling.FOLDER, SCENARIOS)


@pytest.fixture(scope="module")
def litmus(build: Build, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("litmus"), compiling.FOLDER, LITMUS)


def run(program: Path, *names: str) -> tuple[int, str]:
    """Return the exit status and the output."""
    done = subprocess.run([program, *names], capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize("name", RESULTS)
def test_the_model_permits_what_rc11_permits(litmus: Path, name: str):
    status, output = run(litmus, name)
    assert status == 0, output
    found = set(re.findall(r"^\d+$", output, re.MULTILINE))
    count, forbidden = RESULTS[name]
    assert len(found) == count
    assert forbidden not in found


def sum_of(word: str, output: str) -> int:
    """Add the counts that the output gives of something."""
    return sum(map(int, re.findall(rf"(\d+) {word}", output)))


@pytest.mark.parametrize("name", STATES_MIN)
def test_no_execution_of_a_scenario_fails(explorer: Path, name: str):
    status, output = run(explorer, name)
    assert status == 0, output
    assert sum_of("states", output) >= STATES_MIN[name]
    assert sum_of("ends", output) > 0


def test_every_scenario_is_explored(explorer: Path):
    assert run(explorer) == (0, "".join(f"{name}\n" for name in STATES_MIN))


def test_every_memory_that_a_kill_leaves_is_recovered(build: Build, tmp_path: Path):
    status, output = run(build(tmp_path, compiling.FOLDER, KILLS))
    assert status == 0, output
    assert sum_of("memories", output) >= MEMORIES_MIN


@pytest.mark.parametrize("name", WEAKENED)
def test_a_weaker_order_fails(build: Build, tmp_path: Path, name: str):
    file, text, finder = WEAKENED[name]
    for source in compiling.sources():
        shutil.copy(source, tmp_path)
    weakened, count = re.subn("acquire|release|acq_rel", "relaxed", text)
    assert count == 1
    code = (tmp_path / file).read_text()
    assert code.count(text) == 1, f"{file} has changed: name this order by other text"
    (tmp_path / file).write_text(code.replace(text, weakened))
    program, *names = (KILLS,) if finder == KILLS else (SCENARIOS, finder)
    status, output = run(build(tmp_path, tmp_path, program), *names)
    assert status == 1, output

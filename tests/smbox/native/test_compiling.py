"""Building the native library with the available compiler."""

from __future__ import annotations

import ctypes
import platform
import subprocess
from pathlib import Path

import pytest

from smbox.native import compiling
from smbox.native.compiling import BuildError

CC = compiling.system_compiler()
needs_cc = pytest.mark.skipif(CC is None, reason="this machine has no C compiler")
AARCH64 = 183  # e_machine of an ELF header


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A small source folder: the real sources take 4 s to compile."""
    copy = tmp_path / "native"
    copy.mkdir()
    (copy / "version.c").write_text(
        '#define EXPORT __attribute__((visibility("default")))\n'
        "EXPORT extern const char *const smbox_build_compiler;\n"
        "const char *const smbox_build_compiler = SMBOX_BUILD_COMPILER;\n"
    )
    (copy / "answer.c").write_text(
        '__attribute__((visibility("default"))) int smbox_answer(void);\n'
        "int smbox_answer(void) { return 42; }\n"
    )
    return copy


def path_of(tmp_path: Path, *compilers: str) -> str:
    """Return a directory for $PATH with these commands."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in compilers:
        (programs / name).symlink_to("/bin/true")
    return str(programs)


def test_every_c_file_and_header_is_a_source(folder: Path):
    (folder / "more.h").write_text("")
    (folder / "notes.txt").write_text("")
    assert {"version.c", "answer.c", "more.h"} <= {
        path.name for path in compiling.sources(folder)
    }
    assert "notes.txt" not in {path.name for path in compiling.sources(folder)}


def test_the_hash_depends_on_names_contents_and_flags(folder: Path, monkeypatch):
    hashes = [compiling.source_hash(folder)]
    (folder / "answer.c").rename(folder / "reply.c")
    hashes.append(compiling.source_hash(folder))
    (folder / "reply.c").write_text("/* nothing */")
    hashes.append(compiling.source_hash(folder))
    monkeypatch.setattr(compiling, "FLAGS", ("-O2",))
    hashes.append(compiling.source_hash(folder))
    assert len(set(hashes)) == 4
    assert all(len(one) == 12 for one in hashes)


def test_the_file_name_carries_machine_and_hash():
    name = compiling.file_name(machine="aarch64")
    assert name == f"_smbox-aarch64-{compiling.source_hash()}.so"
    assert compiling.file_name().startswith(f"_smbox-{platform.machine()}-")


@needs_cc
def test_building_in_place_replaces_older_libraries_of_this_machine_only(folder: Path):
    mine = folder / f"_smbox-{platform.machine()}-000000000000.so"
    other = folder / "_smbox-riscv64-000000000000.so"
    mine.touch()
    other.touch()
    built = compiling.build_in_place(folder)
    assert sorted(folder.glob("*.so")) == sorted([built, other])
    assert ctypes.CDLL(str(built)).smbox_answer() == 42
    assert list(folder.glob(".building*")) == []


@needs_cc
def test_the_library_tells_its_compiler_and_hash(folder: Path):
    built = compiling.build_in_place(folder)
    assert ctypes.c_char_p.in_dll(ctypes.CDLL(str(built)), "smbox_build_compiler").value
    assert built.stem.endswith(compiling.source_hash(folder))


@needs_cc
def test_the_shipped_sources_compile_without_a_warning(tmp_path: Path):
    compiling.compile_library(tmp_path / "x.so", CC, options=("-Werror", "-O1"))  # quick
    assert (tmp_path / "x.so").is_file()


@needs_cc
def test_a_failed_build_leaves_the_old_library_and_shows_the_compiler_output(folder: Path):
    built = compiling.build_in_place(folder)
    (folder / "answer.c").write_text("no C at all")
    with pytest.raises(BuildError, match=r"answer\.c"):
        compiling.build_in_place(folder)
    assert [path for path in folder.iterdir() if path.suffix not in {".c", ".h"}] == [built]


def test_a_compiler_that_is_not_there_is_named(tmp_path: Path):
    with pytest.raises(BuildError, match="no-such-compiler"):
        compiling.build_in_place(environ={"CC": "no-such-compiler -m64"}, folder=tmp_path)


def test_cc_is_asked_before_gcc_and_the_variable_before_both(tmp_path: Path):
    path = path_of(tmp_path, "cc", "gcc")
    assert compiling.system_compiler({"PATH": path}) == [f"{path}/cc"]
    told = {"PATH": path, "CC": "ccache gcc"}
    assert compiling.system_compiler(told) == ["ccache", "gcc"]


def test_a_compiler_that_cannot_compile_is_passed_over(tmp_path: Path):
    path = path_of(tmp_path, "gcc")
    Path(path, "cc").symlink_to("/bin/false")
    assert compiling.system_compiler({"PATH": path}) == [f"{path}/gcc"]


def test_without_a_compiler_zig_is_taken_for_a_named_target(tmp_path: Path):
    assert compiling.system_compiler({"PATH": path_of(tmp_path)}) is None
    assert compiling.zig_compiler("aarch64", "glibc")[1:] == [
        "-P", "-m", "ziglang", "cc", "-target", "aarch64-linux-gnu.2.17",
    ]  # fmt: skip
    assert compiling.zig_compiler("x86_64", "musl")[-1] == "x86_64-linux-musl"


@pytest.mark.usefixtures("zig_cache")
def test_zig_compiles_for_aarch64(tmp_path: Path):
    pytest.importorskip("ziglang", reason="the extra `dev` brings it")
    target = tmp_path / compiling.file_name(machine="aarch64")
    zig = compiling.zig_compiler("aarch64", "glibc")
    # To compile zig's runtime library, which is not needed, would take 5 s of processor time.
    compiling.compile_library(target, zig, options=("-Werror", "-rtlib=none"))
    header = target.read_bytes()[:20]
    assert header[:4] == b"\x7fELF"
    assert int.from_bytes(header[18:20], "little") == AARCH64


@pytest.mark.usefixtures("zig_cache")
def test_fences_are_before_the_stores_to_a_region_and_after_a_commit_on_aarch64(tmp_path: Path):
    """x86-64 keeps the order of stores: nothing there would show that a fence is missing."""
    pytest.importorskip("ziglang", reason="the extra `dev` brings it")
    flags = [flag for flag in compiling.FLAGS if flag != "-shared"]
    command = [*compiling.zig_compiler("aarch64", "glibc"), *flags, "-S", "-o", "commit.s"]
    subprocess.run([*command, str(compiling.FOLDER / "commit.c")], check=True, cwd=tmp_path)
    assembly = Path(tmp_path, "commit.s").read_text()
    recovery = assembly.partition("\nsmbox_recover:")[2].partition("\tbl\tmemcpy\n")[0]
    kernel = assembly.partition("\tblr\t")[0].rpartition("\tstlr\t")[2]  # from progress on
    end = assembly.partition("\nsmbox_commit:")[2].partition("\tret\n")[0]
    assert "\tdmb\tish\n" in recovery
    assert "\tdmb\tish\n" in kernel
    assert "\tdmb\tish\n" in end.rpartition("\tbl\tsmbox_unlock\n")[2]


@pytest.mark.parametrize("name", ["cc", "zig"])
def test_a_long_read_stores_past_the_caches_by_every_compiler(tmp_path: Path, name: str):
    """A compiler may turn these stores into ordinary ones, which only the speed would show."""
    if name == "zig":
        pytest.importorskip("ziglang", reason="the extra `dev` brings it")
        compiler = compiling.zig_compiler("x86_64", "glibc")
    elif CC is None or platform.machine() != "x86_64":
        pytest.skip("this machine has no C compiler for x86-64")
    else:
        compiler = CC
    flags = [flag for flag in compiling.FLAGS if flag != "-shared"]
    assembly, source = tmp_path / "read.s", compiling.FOLDER / "read.c"
    subprocess.run([*compiler, *flags, "-S", str(source), "-o", str(assembly)], check=True)
    assert "movnt" in assembly.read_text()
    assert "sfence" in assembly.read_text()


@pytest.mark.parametrize(
    ("system", "machine"), [("Darwin", "arm64"), ("Linux", "riscv64"), ("Windows", "AMD64")]
)
def test_other_platforms_have_no_library(monkeypatch, system: str, machine: str):
    assert compiling.why_unwanted({"SMBOX_NO_NATIVE": "0"}) is None
    monkeypatch.setattr(platform, "system", lambda: system)
    monkeypatch.setattr(platform, "machine", lambda: machine)
    assert "x86_64 or aarch64" in compiling.why_unwanted({})

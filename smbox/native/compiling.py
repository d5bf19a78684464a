"""Build of the native library: sources, flags, file name and compiler.

The build hook (hatch_build.py) loads this file by its path, in an environment without smbox and
its dependencies. So it imports only the standard library.

    python smbox/native/compiling.py      # build the library beside its sources
"""

from __future__ import annotations

import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

FOLDER: Final = Path(__file__).resolve().parent
MACHINES: Final = ("x86_64", "aarch64")
COMPILERS: Final = ("cc", "gcc", "clang")
ZIG_REQUIREMENT: Final = "ziglang>=0.13"
FLAGS: Final = (
    "-std=c11",
    "-O3",
    "-fPIC",
    "-shared",
    "-ffp-contract=off",  # no fused multiply-add: every machine must round equally
    "-fno-strict-aliasing",
    "-fwrapv",
    "-fvisibility=hidden",
    "-falign-loops=64",  # a short loop in two cache lines is a tenth slower
)
WARNINGS: Final = (
    *("-Wall", "-Wextra", "-Wconversion", "-Wshadow"),
    "-Wno-pass-failed",  # clang: some loops of the kernels cannot be vectorized
)
GLIBC: Final = "2.17"
"""The oldest glibc on which a library built by zig runs."""
PROBE: Final = """
#include <fcntl.h>
#include <math.h>
#include <stdatomic.h>
#include <string.h>
_Atomic unsigned long word;
double probe(double x) { return atomic_load(&word) ? sqrt(x) : x; }
"""


_IS_32_BIT: Final = sys.maxsize < 2**32


class BuildError(Exception):
    """The library cannot be built. The message says why and what to do."""


def why_unwanted(environ: Mapping[str, str] = os.environ) -> str | None:
    """Return why the library is not built and loaded on this machine; None if it is."""
    if environ.get("SMBOX_NO_NATIVE") == "1":
        return (
            "SMBOX_NO_NATIVE=1 switches the native library off: unset it to map or serve memory"
        )
    if platform.system() != "Linux" or platform.machine() not in MACHINES or _IS_32_BIT:
        return f"the native library needs 64-bit Linux on {' or '.join(MACHINES)}"
    return None


def sources(folder: Path = FOLDER) -> list[Path]:
    """Return the C files and headers, by name."""
    names = os.listdir(folder)  # newer versions of glob return nothing where it fails
    return sorted(folder / name for name in names if name.endswith((".c", ".h")))


def source_hash(folder: Path = FOLDER) -> str:
    """Return 12 hexadecimal digits of a hash of the sources, their names and the flags."""
    digest = hashlib.sha256("\0".join(FLAGS).encode())
    for path in sources(folder):
        content = path.read_bytes()
        digest.update(f"\0{path.name}\0{len(content)}\0".encode())
        digest.update(content)
    return digest.hexdigest()[:12]


def file_name(folder: Path = FOLDER, machine: str | None = None) -> str:
    """Return the file name of the library for a machine; default: this one."""
    return f"_smbox-{machine or platform.machine()}-{source_hash(folder)}.so"


def built_files(folder: Path = FOLDER) -> list[Path]:
    """Return the libraries for this machine in a folder, of any sources."""
    return sorted(folder.glob(f"_smbox-{platform.machine()}-*.so"))


def system_compiler(environ: Mapping[str, str] = os.environ) -> list[str] | None:
    """Return the command of the system's C compiler; None if no compiler works.

    ``$CC`` is used unchecked. Other compilers must compile ``PROBE``: gcc is often installed
    without the headers of the C library.
    """
    if environ.get("CC"):
        return shlex.split(environ["CC"])
    path = environ.get("PATH", os.defpath)
    found = (shutil.which(name, path=path) for name in COMPILERS)
    return next(([compiler] for compiler in found if compiler and _works(compiler)), None)


def _works(compiler: str) -> bool:
    with tempfile.TemporaryDirectory() as folder:
        command = [compiler, *FLAGS, "-x", "c", "-", "-o", f"{folder}/probe.so", "-lm"]
        done = subprocess.run(command, input=PROBE.encode(), capture_output=True, check=False)
    return done.returncode == 0


def zig_compiler(machine: str | None = None, libc: str | None = None) -> list[str]:
    """Return the command of the compiler in the ``ziglang`` package.

    It always names the target: otherwise zig compiles for exactly this processor.
    """
    libc = libc or platform.libc_ver()[0] or "musl"
    abi = f"gnu.{GLIBC}" if libc == "glibc" else "musl"
    target = f"{machine or platform.machine()}-linux-{abi}"
    return [sys.executable, "-P", "-m", "ziglang", "cc", "-target", target]


def compile_library(
    target: Path, compiler: list[str], *, folder: Path = FOLDER, options: tuple[str, ...] = ()
) -> None:
    """Compile every C file of a folder into one shared library.

    Args:
        target: the file to write; it is written completely or not at all.
        compiler: the command from ``system_compiler`` or ``zig_compiler``.
        folder: of the sources.
        options: more options of the compiler.

    Raises:
        BuildError: the compiler is missing or failed; the message has its output.
    """
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".building-") as building:
        made = Path(building, target.name)
        version = _version(compiler, building).replace("\\", "\\\\").replace('"', '\\"')
        macro = f'-DSMBOX_BUILD_COMPILER="{version}"'
        files = [str(path) for path in sources(folder) if path.suffix == ".c"]
        command = [*compiler, *FLAGS, *WARNINGS, *options, macro, *files]
        _run([*command, "-o", str(made), "-lm"], building)
        made.replace(target)


def build_in_place(folder: Path = FOLDER, environ: Mapping[str, str] = os.environ) -> Path:
    """Build the library beside its sources, and remove older ones for this machine.

    Raises:
        BuildError: there is no compiler, or it failed; older libraries stay.
    """
    compiler = system_compiler(environ) or zig_compiler()
    target = folder / file_name(folder)
    compile_library(target, compiler, folder=folder)
    for old in built_files(folder):
        if old != target:
            old.unlink(missing_ok=True)
    return target


def _version(compiler: list[str], cache: str) -> str:
    first = _run([*compiler, "--version"], cache).partition("\n")[0].strip()
    return f"zig cc, {first}" if "ziglang" in compiler else first


def _run(command: list[str], cache: str) -> str:
    """Run a compiler and return its output. ``cache`` is the folder for zig's cache."""
    environ = {"ZIG_GLOBAL_CACHE_DIR": cache, "ZIG_LOCAL_CACHE_DIR": cache, **os.environ}
    try:
        done = subprocess.run(command, capture_output=True, text=True, env=environ, check=False)
    except OSError as error:
        raise BuildError(f"cannot run the C compiler {command[0]!r}: {error}") from error
    if done.returncode == 0:
        return done.stdout
    if "No module named ziglang" in done.stderr:
        raise BuildError(
            f"no working C compiler ({', '.join(COMPILERS)}) and no ziglang: install gcc or "
            "clang with the C library's headers, or `pip install ziglang`"
        )
    raise BuildError(f"the C compiler failed: {shlex.join(command)}\n{done.stderr}")


if __name__ == "__main__":
    try:
        print(why_unwanted() or build_in_place())  # noqa: T201
    except BuildError as failure:
        sys.exit(str(failure))

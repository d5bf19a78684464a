"""Where compiled kernels are kept between processes, and when they are stale.

numba looks only at the file of the function it has compiled; ours also hold the numbers of
layout.py and one another's code. Stale machine code on memory that others share would be a
disaster, so each state of those files has a cache of its own.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

SOURCES: Final = (
    "compile_cache.py",
    "compiled.py",
    "compiled_items.py",
    "compiled_ops.py",
    "compiled_reads.py",
    "compiled_runs.py",
    "compiled_stream.py",
    "compiled_tuning.py",
    "compiled_unlocked.py",
    "layout.py",
    "modes.py",
)


def fingerprint(folder: Path = Path(__file__).parent) -> str:
    """Return 16 hex digits that change with any source the compiled code depends on."""
    digest = hashlib.sha256()
    for name in SOURCES:
        digest.update((folder / name).read_bytes())
    return digest.hexdigest()[:16]


@contextlib.contextmanager
def in_use() -> Iterator[Path]:
    """Let numba cache what is compiled inside the block where it belongs; yields the place.

    NUMBA_CACHE_DIR or the user's cache directory; where neither can be written, a temporary
    one, and each process compiles for itself.

    Raises:
        ModuleNotFoundError: numba is not installed.
    """
    from numba import config  # noqa: PLC0415 - an extra, and slow to import

    before = config.CACHE_DIR
    with _directory(before) as directory:
        config.CACHE_DIR = str(directory)
        try:
            yield directory
        finally:
            config.CACHE_DIR = before


@contextlib.contextmanager
def _directory(base: str) -> Iterator[Path]:
    directory = (Path(base) if base else _user_cache()) / f"smbox-{fingerprint()}"
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        is_ours = os.access(directory, os.W_OK | os.X_OK)
    except OSError:
        is_ours = False
    if is_ours:
        yield directory
        return
    with tempfile.TemporaryDirectory(prefix="smbox-") as temporary:
        yield Path(temporary)


def _user_cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")

"""Functions of installed Python sources as sparse examples: is a function of PyTorch, or not?

Every machine that runs smbox_torch has this text: the standard library, numpy and torch. One
example is one function or method. Its words are the runs of letters in its source, in lower
case, without the packages' own names; a word's feature is its CRC-32 modulo FEATURES. A word
that is there k times has the value 1 + log k, and the values of an example have norm 1. Exact
copies count once. A fifth of the files, picked by the CRC-32 of their names, is the test set:
no file is in both. The same versions of Python, numpy and torch give the same examples.
"""

from __future__ import annotations

import ast
import os
import platform
import re
import sysconfig
import tempfile
import warnings
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

__all__ = ["FEATURES", "Examples", "cache_path", "functions", "load"]

FEATURES: Final = 1 << 16
WORD: Final = re.compile(r"[a-z]{2,}")
NAMES: Final = {"torch", "numpy", "np"}
WORDS_MIN: Final = 5
LEFT_OUT: Final = {"site-packages", "dist-packages", "test", "tests", "idlelib"}
"""Folders of the standard library that are no part of it, or that some systems do not ship."""

TEST_SHARE: Final = 0.2
KEPT: Final = {"python": 1.0, "numpy": 1.0, "torch": 0.5}
"""Share of a package's files: torch has more functions than the others together."""

POSITIVE: Final = "torch"


@dataclass(frozen=True)
class Examples:
    """Sparse examples in compressed rows; n examples with m non-zeros in all.

    Attributes:
        index: ``i64[m]``: features, ascending and different within an example.
        value: ``f32[m]``: their values.
        first: ``i64[n + 1]``: where the examples begin in the two others.
        label: ``f32[n]``: 1 for a function of torch, else -1.
    """

    index: NDArray[np.int64]
    value: NDArray[np.float32]
    first: NDArray[np.int64]
    label: NDArray[np.float32]

    def __len__(self) -> int:
        return len(self.label)

    def counts(self) -> NDArray[np.int64]:
        """Return ``i64[FEATURES]``: how many examples have each feature."""
        return np.bincount(self.index, minlength=FEATURES)

    def digest(self) -> str:
        """Return 8 hex digits that differ where the examples differ."""
        arrays = (self.index, self.value, self.first, self.label)
        return f"{zlib.crc32(b''.join(each.tobytes() for each in arrays)):08x}"


def load(share: float = 1.0, path: Path | None = None) -> tuple[Examples, Examples]:
    """Return training and test examples; the first call makes a file that later calls read.

    Args:
        share: of the source files, from 0 to 1.
        path: of that file; None: ``cache_path``.
    """
    path = cache_path(share) if path is None else path
    if not path.exists():
        _store(path, _split(share))
    with np.load(path) as held:
        parts = [
            Examples(*(held[f"{part}.{name}"] for name in ("index", "value", "first", "label")))
            for part in ("train", "test")
        ]
    return parts[0], parts[1]


def cache_path(share: float) -> Path:
    """Return where the examples of these versions of Python, numpy, torch and this file are."""
    own = zlib.crc32(Path(__file__).read_bytes())
    versions = f"{platform.python_version()}-{np.__version__}-{torch.__version__}-{own:08x}"
    folder = Path(tempfile.gettempdir()) / f"smbox-functions-{os.getuid()}"
    return folder / f"{versions}-{share:g}.npz"


def _store(path: Path, parts: dict[str, Examples]) -> None:
    """Write the file; it is whole or not there, whenever this is interrupted."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    arrays: dict[str, Any] = {
        f"{part}.{name}": array
        for part, examples in parts.items()
        for name, array in vars(examples).items()
    }
    beside = path.with_suffix(f".{os.getpid()}.npz")
    np.savez(beside, **arrays)
    beside.rename(path)


def _split(share: float) -> dict[str, Examples]:
    found: dict[str, list[tuple[list[str], float]]] = {"train": [], "test": []}
    seen = set()
    for package, root in _roots().items():
        for file in _files(root):
            name = f"{package}/{file.relative_to(root)}"
            if _draw(f"kept {name}") >= KEPT[package] * share:
                continue
            part = "test" if _draw(name) < TEST_SHARE else "train"
            for words in functions(file.read_text(encoding="utf-8", errors="replace")):
                text = " ".join(words)
                if len(words) >= WORDS_MIN and text not in seen:
                    seen.add(text)
                    found[part].append((words, 1.0 if package == POSITIVE else -1.0))
    return {part: _compressed(mine) for part, mine in found.items()}


def _roots() -> dict[str, Path]:
    numpy_file, torch_file = np.__file__, torch.__file__
    assert numpy_file is not None
    return {
        "python": Path(sysconfig.get_paths()["stdlib"]),
        "numpy": Path(numpy_file).parent,
        "torch": Path(torch_file).parent,
    }


def _files(root: Path) -> list[Path]:
    """Return the sources below a folder, in an order that is the same everywhere."""
    every = ((path.relative_to(root).parts, path) for path in root.rglob("*.py"))
    is_library = root == _roots()["python"]
    return [path for parts, path in sorted(every) if not (is_library and LEFT_OUT & {*parts})]


def _draw(name: str) -> float:
    """Return a number from 0 to 1 that depends on the name alone."""
    return zlib.crc32(name.encode()) / 2**32


def functions(source: str) -> Iterator[list[str]]:
    """Iterate over the words of each function and method of a source, nested ones in theirs."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the source's own escapes
            waiting: list[ast.AST] = [ast.parse(source)]
    except (SyntaxError, ValueError):
        return
    lines = source.split("\n")
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            text = "\n".join(lines[node.lineno - 1 : node.end_lineno]).lower()
            yield [word for word in WORD.findall(text) if word not in NAMES]
        elif isinstance(node, ast.Module | ast.ClassDef):
            waiting.extend(node.body)


@cache
def _feature(word: str) -> int:
    return zlib.crc32(word.encode()) % FEATURES


def _compressed(found: list[tuple[list[str], float]]) -> Examples:
    index, value, first = [], [], [0]
    for words, _ in found:
        features, times = np.unique([_feature(word) for word in words], return_counts=True)
        values = 1.0 + np.log(times)
        index.append(features)
        value.append(values / np.linalg.norm(values))
        first.append(first[-1] + len(features))
    return Examples(
        np.concatenate(index).astype(np.int64),
        np.concatenate(value).astype(np.float32),
        np.array(first, np.int64),
        np.array([label for _, label in found], np.float32),
    )

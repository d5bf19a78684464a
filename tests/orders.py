"""A plugin of pytest: the order in which tests run, and that in which they are collected."""

from __future__ import annotations

import fcntl
import functools
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parent
FIRST = ("smbox", "memnode", "contracts", "faults")
LONG = tuple((TESTS / "long_files.txt").read_text().split())
"""The files that take longest; they start early, so that the run does not end with one."""


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> Iterator[None]:
    """Run the core's tests first, then the long files, then the others by their names.

    Here hypothesis reads the numbers and strings in all imported sources. It stores them, so
    that only the first process needs to parse a source, if no other one does so meanwhile.
    """
    folder = os.open(TESTS, os.O_RDONLY)
    fcntl.flock(folder, fcntl.LOCK_EX)
    yield
    os.close(folder)
    items.sort(key=lambda item: rank(item.path))


@functools.cache
def rank(file: Path) -> tuple[int, Path]:
    """Return the place of a file of tests in the order of the run."""
    order = [*FIRST, *LONG]
    path = file.relative_to(TESTS)
    found = [name for name in (path.parts[0], path.as_posix()) if name in order]
    return order.index(found[0]) if found else len(order), path


class Turned(pytest.Dir):
    """A folder of tests, of which each worker of pytest-xdist begins at another file.

    In a new clone a worker compiles each file that no other one has compiled. If all had the
    same order, each of them would compile nearly all files, and at the same time.
    """

    def collect(self) -> Iterator[pytest.Item | pytest.Collector]:
        """Yield the files and folders, the ones before the first one last."""
        found = list(super().collect())
        number = int(os.environ["PYTEST_XDIST_WORKER"].removeprefix("gw"))
        first = len(found) * number // int(os.environ["PYTEST_XDIST_WORKER_COUNT"])
        yield from found[first:]
        yield from found[:first]


if "PYTEST_XDIST_WORKER" in os.environ:

    def pytest_collect_directory(path: Path, parent: pytest.Collector) -> pytest.Dir:
        """Collect this folder from this worker's place on."""
        return Turned.from_parent(parent, path=path)

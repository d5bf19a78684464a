"""Fixtures of all tests, and a check that no test leaves threads, files or segments."""

from __future__ import annotations

import gc
import logging
import multiprocessing
import os
import shlex
import signal
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, nullcontext, suppress
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import psutil
import pytest
from zmq.utils.garbage import GarbageCollectorThread

from smbox.memory.layout import Superblock

signal.signal(signal.SIGHUP, signal.SIG_DFL)  # under nohup all processes would ignore it
if "PYTEST_XDIST_WORKER" in os.environ:  # then this is a fork of the Python that tests start
    sys.executable = sys.orig_argv[0]
    multiprocessing.set_executable(sys.executable)
gc.disable()  # until all tests are collected: it would take a third of that time, for nothing

SETTLE_S = 20.0
UNTIL_S = 60.0
SHM = Path("/dev/shm")
SEGMENTS = "segments in /dev/shm"
TESTS = Path(__file__).resolve().parent
POPEN = subprocess.Popen


def _module(name: str) -> ModuleType:
    """Return a module of this folder, in which Python does not look for modules."""
    spec = spec_from_file_location(name, TESTS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


SERVERS = _module("servers")
ORDERS = _module("orders")
SHARED: pytest.StashKey[dict[str, str]] = pytest.StashKey()
"""Key of their paths in the configuration of pytest-xdist's controller."""


def pytest_configure(config: pytest.Config) -> None:
    """Restore Python's SIGINT handler, and let workers of pytest-xdist be preloaded forks."""
    config.pluginmanager.register(ORDERS)
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as a background shell sets it
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if config.getoption("tx", None):
        stack = ExitStack()
        config.add_cleanup(stack.close)
        pythons: dict[str, str] = {}
        for name in SERVERS.MODULES:  # each server is a fork of the one before
            start = SERVERS.preloading(name, *list(pythons.values())[-1:])
            pythons[name] = stack.enter_context(start)
        config.stash[SHARED] = pythons
        worker = f"popen//python={shlex.quote(pythons['preloaded'])}"
        config.option.tx = [worker] * len(config.option.tx)


def pytest_collection_finish() -> None:
    """Collect garbage again, and let all loggers propagate to the root logger.

    About 50 loggers of PyTorch do not; pytest would attach its handlers to each of them in
    every phase of every test.
    """
    for each in logging.root.manager.loggerDict.values():
        if isinstance(each, logging.Logger) and each.name.startswith("torch"):
            each.propagate = True
    gc.freeze()
    gc.enable()


def _of_another_session(segment: Path) -> bool:
    """Return True if a living node that this test run did not start owns the segment."""
    superblock = SHM / f"smbox.{segment.name.split('.')[1]}.node"
    try:
        with superblock.open("rb") as file:
            file.seek(8 * Superblock.PID)
            (pid,) = struct.unpack("<Q", file.read(8))
        while pid not in {0, os.getpid()}:  # up to the first process, whose parent is 0
            stat = Path(f"/proc/{pid}/stat").read_text()  # psutil would take ten times as long
            pid = int(stat.rpartition(")")[2].split()[1])
    except (OSError, struct.error):
        return False
    return pid == 0


def _segments() -> set[str]:
    return {name for name in os.listdir(SHM) if name.startswith("smbox.")}


def _children() -> set[int]:
    try:  # without children there are no descendants: skip the scan of all processes
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return set()
    return {child.pid for child in psutil.Process().children(recursive=True)} - SERVERS.PIDS


def _threads() -> set[str]:
    """Return the names of running threads that Python started, and that end.

    pyzmq's collector never ends. A thread of PyTorch that ran a hook is a "Dummy".
    """
    threads = threading.enumerate()
    own = [t for t in threads if not isinstance(t, GarbageCollectorThread)]
    return {t.name for t in own if not t.name.startswith("Dummy-")}


def _files() -> set[str]:
    """Return the targets of open descriptors: sockets and files of smbox in /dev/shm."""
    found = set()
    for fd in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):
            target = os.readlink(f"/proc/self/fd/{fd}")
            if "/dev/shm/smbox" in target or target.startswith("socket:"):
                found.add(target)
    return found


def _left(before: dict[str, set]) -> dict[str, set]:
    """Return what is new since ``before``, without segments of other test runs."""
    left = {name: probe() - before[name] for name, probe in PROBES.items()}
    left[SEGMENTS] = {name for name in left[SEGMENTS] if not _of_another_session(SHM / name)}
    return left


PROBES: dict[str, Callable[[], set]] = {
    SEGMENTS: _segments,
    "child processes": _children,
    "threads": _threads,
    "open files and sockets": _files,
}


@contextmanager
def _no_leak() -> Iterator[None]:
    """Fail if something that appeared inside the block is still there SETTLE_S after it.

    Things that appear only after the block belong to others: test runs share /dev/shm.
    """
    before = {name: probe() for name, probe in PROBES.items()}
    yield
    left = _left(before)
    deadline = time.monotonic() + SETTLE_S
    while any(left.values()):
        if time.monotonic() > deadline:
            pytest.fail(f"left behind: { {name: what for name, what in left.items() if what} }")
        gc.collect()
        time.sleep(0.02)
        left = {name: what & left[name] for name, what in _left(before).items()}


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Give all pytest-xdist workers the same Pythons that have modules imported."""
    node.workerinput |= node.config.stash[SHARED]


@pytest.fixture(scope="session")
def preloaded(request: pytest.FixtureRequest) -> Iterator[str]:
    """Return the path of a Python that starts with torch imported (preloaded.py)."""
    shared = getattr(request.config, "workerinput", {}).get(request.fixturename)
    with nullcontext(shared) if shared else SERVERS.preloading(request.fixturename) as python:
        yield python


frameworks = preloaded  # with FRAMEWORKS imported, too, which takes up to 3 s


@pytest.fixture(scope="session")
def quick_popen() -> Iterator[type[subprocess.Popen]]:
    """Return a ``subprocess.Popen`` whose programs start with smbox imported (servers.py)."""
    with closing(SERVERS.Children()) as children:
        yield children.popen


@pytest.fixture(scope="module")
def quick_starts(quick_popen: type[subprocess.Popen]) -> Iterator[None]:
    """Start all programs so, in a tenth of the processor time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(subprocess, "Popen", quick_popen)
        yield


@pytest.fixture(scope="session")
def quick_cc(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return a C compiler, for ``$CC``, that does not optimize, because that is much faster."""
    from smbox.native import compiling

    path = tmp_path_factory.mktemp("compiler") / "cc"
    words = compiling.system_compiler()
    if words is None:
        pytest.skip("this machine has no C compiler")
    path.write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@" -O0\n')
    path.chmod(0o755)
    return str(path)


@pytest.fixture
def zig_cache(pytestconfig: pytest.Config, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep zig's cache from one test run to the next.

    With an empty cache, zig compiles its C library, which takes most of its time.
    """
    assert pytestconfig.cache is not None
    for name in ("ZIG_GLOBAL_CACHE_DIR", "ZIG_LOCAL_CACHE_DIR"):
        monkeypatch.setenv(name, str(pytestconfig.cache.mkdir("zig")))


@pytest.fixture(scope="session")
def until() -> Callable[[Callable[[], Any]], None]:
    """Return ``until(is_true)``, which waits until ``is_true()`` holds, at most UNTIL_S."""

    def wait(is_true: Callable[[], Any]) -> None:
        deadline_s = time.monotonic() + UNTIL_S
        while not is_true():
            assert time.monotonic() < deadline_s
            time.sleep(0.01)

    return wait


@pytest.fixture(scope="session")
def having() -> Callable[[str, str], list[psutil.Process]]:
    """Return ``having(variable, value)``, which lists other processes with this variable."""

    def find(variable: str, value: str) -> list[psutil.Process]:
        found = []
        for each in psutil.process_iter():
            with suppress(psutil.Error):
                # a zombie ends with the last process of its namespace
                is_other = each.pid != os.getpid() and each.status() != psutil.STATUS_ZOMBIE
                if is_other and each.environ().get(variable) == value:
                    found.append(each)
        return found

    return find


@pytest.fixture(scope="session")
def own_children() -> Callable[[], list[psutil.Process]]:
    """Return ``own_children()``: the child processes, without servers of forks."""
    return lambda: [
        each for each in psutil.Process().children() if each.pid not in SERVERS.PIDS
    ]


@pytest.fixture
def foreign_memnode(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Change to a folder with another package named ``memnode``, which must not be run."""
    monkeypatch.setattr(subprocess, "Popen", POPEN)  # forks have imported the usual one
    package = tmp_path / "memnode"
    package.mkdir()
    for name in ("__init__.py", "__main__.py"):
        (package / name).write_text("raise SystemExit('memnode of the current directory')")
    monkeypatch.chdir(tmp_path)


@pytest.fixture(autouse=True, scope="module")
def module_leaves_nothing_behind() -> Iterator[None]:
    """Check for leaks after the last test of a file.

    Objects that exist before the first test are frozen. Otherwise each garbage collection of
    the check would scan all objects of torch and of all tests, which takes 0.4 s.
    """
    gc.collect()
    gc.freeze()
    with _no_leak():
        yield


@pytest.fixture(autouse=True)
def leaves_nothing_behind(request: pytest.FixtureRequest) -> Iterator[None]:
    """Check for leaks after each test, or after the last test of a file marked ``shares``."""
    if request.node.get_closest_marker("shares"):
        yield
        return
    with _no_leak():
        yield

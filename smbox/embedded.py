"""``smbox.local()``: a memory node of one's own, for this process and those it starts.

The node is a child process. It watches this one and ends with it, however that ends; a
watcher thread here starts it again, under its name and at its address, if it dies alone: the
memory is still there then, and connections go on where they were.
"""

from __future__ import annotations

import atexit
import json
import logging
import os
import secrets
import subprocess
import sys
import threading
from typing import Final

from smbox.box import Box
from smbox.config import ClientConfig, check_memory, parse_size
from smbox.errors import ConnectError
from smbox.memory.superblock import remove_all
from smbox.native import library
from smbox.paths.pair import PathPair

_LOG = logging.getLogger(__name__)

READY_TIMEOUT_S: Final = 60.0
STOP_TIMEOUT_S: Final = 10.0
RESTARTS_MAX: Final = 5
"""Starts in a row that fail before the node is given up."""

PAUSE_S: Final = 0.2


def local(
    memory: str | int = "1GiB", *, transport: str = "auto", timeout_s: float = 10.0
) -> LocalBox:
    """Start a memory node for this process tree and connect to it.

    Args:
        memory: most bytes that the node may take, such as "1GiB", or a number of them.
        transport: as for ``connect``.
        timeout_s: how long every verb waits when not told; starting may take longer.

    Raises:
        ConfigError: no node can have ``memory``, or the transport cannot work here.
        ConnectError: the node does not start; its own words are on stderr.
        NativeError: there is no native library, without which no node works.
    """
    library.load()
    node = EmbeddedNode(memory)
    try:
        paths = PathPair(ClientConfig(node.address, transport, timeout_s))
        paths.open()
        return LocalBox(paths, node)
    except BaseException:
        node.close()
        raise


class LocalBox(Box):
    """A Box that owns its node: closing it ends the node and frees the memory.

    Pickled, it becomes a plain Box on the same node.

    Args:
        paths: to the node.
        node: closed with the box.
    """

    def __init__(self, paths: PathPair, node: EmbeddedNode) -> None:
        super().__init__(paths)
        self._node = node

    def close(self) -> None:
        """Let go of everything, and end the node. Idempotent."""
        super().close()
        self._node.close()


class EmbeddedNode:
    """A memory node in a child process, started again when it dies.

    Args:
        memory: most bytes that it may take, such as "1GiB", or a number of them.

    Raises:
        ConfigError: no node can have so many; none was started.
        ConnectError: it does not start.
    """

    def __init__(self, memory: str | int) -> None:
        self._memory_nbytes = check_memory(parse_size(str(memory)))
        self._name = f"local-{os.getpid()}-{secrets.token_hex(4)}"
        self._owner = os.getpid()
        self._mutex = threading.Lock()
        self._closing = threading.Event()
        self.address = "tcp://127.0.0.1:0"
        self._process = self._start()
        self._watcher = threading.Thread(
            target=self._watch, name=f"smbox-{self._name}", daemon=True
        )
        self._watcher.start()
        atexit.register(self.close)

    @property
    def pid(self) -> int:
        """Process id of the node that runs now, or ran last."""
        return self._process.pid

    def close(self) -> None:
        """End the node and its memory. Idempotent; does nothing in a forked child."""
        if os.getpid() != self._owner:
            return
        atexit.unregister(self.close)
        with self._mutex:
            self._closing.set()
            process = self._process
        _stop(process)
        self._watcher.join()
        remove_all(self._name)  # there is something only of a node that was killed

    def _start(self) -> subprocess.Popen[bytes]:
        """Start the process and wait until it serves."""
        command = [sys.executable, "-m", "memnode", "--bind", self.address]
        command += ["--name", self._name, "--memory", str(self._memory_nbytes), "--json"]
        command += ["--parent-pid", str(self._owner)]
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C is for us: we end the node after our own end
        )
        try:
            self.address = _address_of(process)
        except BaseException:
            _stop(process)
            raise
        return process

    def _watch(self) -> None:
        """Start the node again each time it ends before we do."""
        failures = 0
        while failures < RESTARTS_MAX:
            self._process.wait()
            with self._mutex:
                if self._closing.is_set():
                    return
                _LOG.warning("memory node %s ended, starting it again", self._name)
                try:
                    self._process = self._start()
                    failures = 0
                    continue
                except (ConnectError, OSError):
                    failures += 1
                    _LOG.exception("memory node %s does not start", self._name)
            self._closing.wait(PAUSE_S * failures)
        _LOG.error("memory node %s is given up", self._name)


def _address_of(process: subprocess.Popen[bytes]) -> str:
    """Read the ready line; a node that does not say it in time is killed."""
    late = threading.Timer(READY_TIMEOUT_S, process.kill)
    late.start()
    try:
        assert process.stdout is not None
        with process.stdout as output:
            line = output.readline()
    finally:
        late.cancel()
    if not line.endswith(b"\n"):
        _stop(process)
        raise ConnectError(
            "the memory node does not start; its own words are on stderr",
            exit_status=process.returncode,
        )
    try:
        address: str = json.loads(line)["address"]
    except (ValueError, TypeError, KeyError) as error:
        raise ConnectError(
            "the memory node's first line is not its ready line: does something of this"
            " environment (a wrapper, a sitecustomize) print to its output?",
            line=line.decode(errors="replace"),
        ) from error
    return address


def _stop(process: subprocess.Popen[bytes]) -> None:
    """End a process, kindly first, and take its exit status."""
    process.terminate()
    try:
        process.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()

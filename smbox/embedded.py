"""``smbox.local()``: a box on an embedded memory node of this process and its children.

An embedded node is a child process that ends with its parent, however the parent ends. If it
dies earlier, a watcher thread restarts it with its name and address. Its memory still exists
then, and connections resume.
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
import time
from contextlib import ExitStack
from typing import Final

from smbox.box import Box
from smbox.config import ClientConfig, check_memory, parse_size
from smbox.errors import ConnectError
from smbox.limits import refusal, start_thread
from smbox.memory.superblock import remove_all
from smbox.native import library
from smbox.paths.pair import PathPair

_LOG = logging.getLogger(__name__)

READY_TIMEOUT_S: Final = 60.0
STOP_TIMEOUT_S: Final = 10.0
RESTARTS_MAX: Final = 5
"""Failed restarts in a row after which the watcher gives up."""

PAUSE_S: Final = 0.2


def local(
    memory: str | int = "1GiB", *, transport: str = "auto", timeout_s: float = 10.0
) -> LocalBox:
    """Start an embedded memory node for this process and its children, and connect to it.

    Args:
        memory: most memory that the node may use: a text such as "1GiB", or bytes.
        transport: see ``connect``.
        timeout_s: default timeout of every verb, in seconds; the start of the node may take
            longer.

    Raises:
        ConfigError: a node cannot have this much memory, or the transport cannot work here.
        ConnectError: the node does not start; its output is on stderr.
        SystemLimitError: this process can start no process or thread.
        NativeError: the native library is missing; no node works without it.
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
    """A Box that owns its embedded node; closing the box stops the node and frees its memory.

    A pickled copy is an ordinary Box on the same node.

    Args:
        paths: paths to the node.
        node: the node; it is closed with the box.
    """

    def __init__(self, paths: PathPair, node: EmbeddedNode) -> None:
        super().__init__(paths)
        self._node = node
        atexit.register(paths.close)  # registered after the node's end, it runs before that

    def close(self) -> None:
        """Close the box, stop the node and free its memory. Idempotent."""
        super().close()
        atexit.unregister(self._paths.close)
        self._node.close()


class EmbeddedNode:
    """A memory node in a child process, restarted when it dies.

    Args:
        memory: most memory that the node may use: a text such as "1GiB", or bytes.

    Raises:
        ConfigError: a node cannot have this much memory; no process was started.
        ConnectError: the node does not start; neither a node nor memory was left.
        SystemLimitError: this process can start no thread or process; as above.
    """

    def __init__(self, memory: str | int) -> None:
        self._memory_nbytes = check_memory(parse_size(str(memory)))
        self._name = f"local-{os.getpid()}-{secrets.token_hex(4)}"
        self._owner = os.getpid()
        self._is_closing = False  # no lock: a signal handler inside ``close`` may close, too
        self.address = "tcp://127.0.0.1:0"
        self._watcher = threading.Thread(
            target=self._watch, name=f"smbox-{self._name}", daemon=True
        )
        with ExitStack() as undo:
            undo.callback(remove_all, self._name)  # a node that crashes leaves its segments
            self._process = self._start()
            undo.callback(_stop, self._process)
            start_thread(self._watcher.start)
            undo.pop_all()
        atexit.register(self.close)

    @property
    def pid(self) -> int:
        """Process id of the running node, or of the last one."""
        return self._process.pid

    def close(self) -> None:
        """Stop the node and free its memory. Idempotent; does nothing in a forked child."""
        if os.getpid() != self._owner:
            return
        atexit.unregister(self.close)
        self._is_closing = True
        while self._watcher.is_alive():  # it may be starting another node
            _stop(self._process)
            self._watcher.join(PAUSE_S)
        remove_all(self._name)  # a killed node leaves its segments

    def _start(self) -> subprocess.Popen[bytes]:
        """Start the process and wait until it serves."""
        command = [sys.executable, "-P", "-m", "memnode", "--bind", self.address]
        command += ["--name", self._name, "--memory", str(self._memory_nbytes), "--json"]
        command += ["--parent-pid", str(self._owner)]
        try:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                start_new_session=True,  # Ctrl-C must not stop the node before this process
            )
        except OSError as error:
            raise refusal("start a memory node", error) from error
        try:
            self.address = _address_of(process)
        except BaseException:
            _stop(process)
            raise
        return process

    def _watch(self) -> None:
        """Restart the node each time it ends, until ``close``."""
        failures = 0
        while failures < RESTARTS_MAX:
            self._process.wait()
            if self._is_closing:
                return
            _LOG.warning("memory node %s ended; restarting it", self._name)
            try:
                self._process = self._start()
                failures = 0
            except (ConnectError, OSError):
                failures += 1
                _LOG.exception("memory node %s does not start", self._name)
            time.sleep(PAUSE_S * failures)
        _LOG.error("memory node %s failed to start %d times: giving up", self._name, failures)


def _address_of(process: subprocess.Popen[bytes]) -> str:
    """Return the address in the node's ready line; kill a node that prints none in time."""
    late = threading.Timer(READY_TIMEOUT_S, process.kill)
    assert process.stdout is not None
    with process.stdout as output:
        try:
            start_thread(late.start)
            line = output.readline()
        finally:
            late.cancel()
    try:
        return str(json.loads(line)["address"])
    except (ValueError, TypeError, KeyError) as error:
        _stop(process)
        raise ConnectError(
            "the memory node does not start, or prints before its ready line: read its stderr",
            line=line.decode(errors="replace"),
            exit_status=process.returncode,
        ) from error


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Terminate a process, kill it after STOP_TIMEOUT_S, and collect its exit status."""
    process.terminate()
    try:
        process.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()

"""``smbox.connect()`` and ``smbox.local()``: boxes on existing nodes, or on an embedded node.

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
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, Final

from smbox.box import Box
from smbox.config import ClientConfig, addresses_of, check_memory, parse_size
from smbox.errors import ConfigError, ConnectError, SmboxError
from smbox.many.box import ManyBox
from smbox.many.striping import Node
from smbox.memory.superblock import remove_all
from smbox.native import library
from smbox.paths.pair import PathPair

_LOG = logging.getLogger(__name__)

READY_TIMEOUT_S: Final = 60.0
STOP_TIMEOUT_S: Final = 10.0
RESTARTS_MAX: Final = 5
"""Failed restarts in a row after which the watcher gives up."""

PAUSE_S: Final = 0.2


def connect(
    address: str | None = None,
    *,
    transport: str | None = None,
    key: str | os.PathLike[str] | None = None,
    timeout_s: float | None = None,
) -> Box:
    """Connect to a memory node, or to all nodes of one address space.

    An argument that is None is read from the environment (``SMBOX_ADDRESS``,
    ``SMBOX_TRANSPORT``, ``SMBOX_KEY``, ``SMBOX_TIMEOUT_S``), else it has its default;
    docs/cli.md lists more variables.

    Args:
        address: ``tcp://host:port`` or ``ipc://path``. Addresses of several nodes are separated
            by commas, in any order; the box then spans all of them (docs/many_nodes.md).
        transport: "auto" maps the memory if it is on this host, else it sends messages; "shm",
            "tcp" and "ipc" allow only that transport.
        key: file of this client's key, for a node that was started with ``--keys``.
        timeout_s: timeout of connecting and default timeout of every verb, in seconds; 10 by
            default. The timeout of a region's verb restarts as long as part of its array is
            transferred.

    Raises:
        ConfigError: no address is given, the transport cannot work here, or two of several
            nodes have the same id.
        ConnectError: no node answers at the address, or the node is not the one that the key is
            for.
        AccessDeniedError: the node refuses the key, or requires one.
    """
    given: dict[str, Any] = {
        "address": address,
        "transport": transport,
        "key": None if key is None else os.fspath(key),
        "timeout_s": timeout_s,
    }
    given = {name: value for name, value in given.items() if value is not None}
    config = replace(ClientConfig.from_env(os.environ), **given)
    if config.address is None:
        raise ConfigError("no address: give one, or set SMBOX_ADDRESS")
    with ExitStack() as opened:
        nodes: dict[int, Node] = {}
        for each in addresses_of(config.address):
            paths = PathPair(replace(config, address=each))
            opened.callback(paths.close)
            try:
                node_id = paths.control().node.node_id
            except SmboxError as error:
                error.facts.setdefault("address", each)
                raise
            if node_id in nodes:
                raise ConfigError(
                    "two addresses lead to nodes of one id: start each memory node with a"
                    " --node-id of its own, and name each once",
                    node=node_id,
                    addresses=[nodes[node_id].address, each],
                )
            nodes[node_id] = Node(paths, node_id)
        opened.pop_all()
    return ManyBox(nodes.values()) if len(nodes) > 1 else nodes.popitem()[1].box


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

    def close(self) -> None:
        """Close the box, stop the node and free its memory. Idempotent."""
        super().close()
        self._node.close()


class EmbeddedNode:
    """A memory node in a child process, restarted when it dies.

    Args:
        memory: most memory that the node may use: a text such as "1GiB", or bytes.

    Raises:
        ConfigError: a node cannot have this much memory; no process was started.
        ConnectError: the node does not start.
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
        """Process id of the running node, or of the last one."""
        return self._process.pid

    def close(self) -> None:
        """Stop the node and free its memory. Idempotent; does nothing in a forked child."""
        if os.getpid() != self._owner:
            return
        atexit.unregister(self.close)
        with self._mutex:
            self._closing.set()
            process = self._process
        _stop(process)
        self._watcher.join()
        remove_all(self._name)  # a killed node leaves its segments

    def _start(self) -> subprocess.Popen[bytes]:
        """Start the process and wait until it serves."""
        command = [sys.executable, "-m", "memnode", "--bind", self.address]
        command += ["--name", self._name, "--memory", str(self._memory_nbytes), "--json"]
        command += ["--parent-pid", str(self._owner)]
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C must not stop the node before this process
        )
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
            with self._mutex:
                if self._closing.is_set():
                    return
                _LOG.warning("memory node %s ended; restarting it", self._name)
                try:
                    self._process = self._start()
                    failures = 0
                except (ConnectError, OSError):
                    failures += 1
                    _LOG.exception("memory node %s does not start", self._name)
            self._closing.wait(PAUSE_S * failures)
        _LOG.error("memory node %s failed to start %d times: giving up", self._name, failures)


def _address_of(process: subprocess.Popen[bytes]) -> str:
    """Return the address in the node's ready line; kill a node that prints none in time."""
    late = threading.Timer(READY_TIMEOUT_S, process.kill)
    late.start()
    try:
        assert process.stdout is not None
        with process.stdout as output:
            line = output.readline()
    finally:
        late.cancel()
    try:
        return str(json.loads(line)["address"])
    except (ValueError, TypeError, KeyError) as error:
        _stop(process)
        raise ConnectError(
            "the memory node does not start, or its first line is not its ready line: read its"
            " output on stderr; does something in this environment (a wrapper, a sitecustomize)"
            " print to its output?",
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

"""A detached memory node, for launchers that kill their children when they end.

A node removes its memory from /dev/shm when it stops, but not when it is killed. This node
watches its launcher (``--parent-pid``) and stops when the launcher ends. Its shell then removes
the keys.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from smbox.errors import ConnectError
from smbox.memory.superblock import remove_all
from smbox_torch.launching.access import write_keys
from smbox_torch.launching.node_deaths import NodeDeaths
from smbox_torch.launching.node_keeper import STOPPED_MESSAGE
from smbox_torch.workers.reporter import parse

SHELL: Final = ("/bin/sh", "-c", '("$@" 2>&1 && rm -r "$0") &')
"""Starts a node; $0 is the key folder, which is kept if the node is killed: a restart needs
it."""


class DetachedNode:
    """A memory node with keys; when it dies, it is restarted on the same memory and address.

    Args:
        node_id: id of the node.
        memory: its size, for example "1GiB".
        keys: files of its key folder, as ``made_keys`` returns them.
        bind: a tcp address; port 0 selects a free port.
    """

    def __init__(self, node_id: int, memory: str, keys: Mapping[str, str], bind: str) -> None:
        self._name = f"detached-{uuid.uuid4().hex[:12]}"
        self._folder = tempfile.TemporaryDirectory(prefix="smbox-keys-")
        write_keys(keys, Path(self._folder.name))
        argv = [
            sys.executable,
            "-P",
            "-m",
            "memnode",
            "--name",
            self._name,
            "--node-id",
            str(node_id),
            "--memory",
            memory,
        ]
        argv += ["--keys", self._folder.name, "--parent-pid", str(os.getpid()), "--json"]
        self._argv = argv
        self._address = bind
        self._is_ending = threading.Event()

    def start(self) -> str:
        """Start the node and wait until it serves.

        Returns:
            The address with its port.

        Raises:
            ConnectError: it did not start; nothing is left. The message contains its last
                output.
        """
        self._process = subprocess.Popen(
            [*SHELL, self._folder.name, *self._argv, "--bind", self._address],
            stdout=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        self._process.wait()  # for the shell; the node is not a child of this process
        said = "nothing"
        for line in self._lines():
            event = parse(line)
            if event.get("event") == "ready":
                self._pid, self._address = int(event["pid"]), str(event["address"])
                return self._address
            said = line.strip() or said
            print(f"memory node: {line}", end="")
        self._close_pipe()
        self._folder.cleanup()
        raise ConnectError(f"memnode ended; it said: {said}")

    def serve(self) -> None:
        """Watch the node until another thread calls ``stop``; then remove its memory and keys.

        Raises:
            ConnectError: another process stopped it, it died too often in a row, or a restart
                failed; its memory was removed.
        """
        deaths = NodeDeaths()
        try:
            while True:
                deaths.start()
                for line in self._lines():
                    print(f"memory node: {line}", end="")
                self._close_pipe()
                if self._is_ending.is_set():
                    return
                if not Path(self._folder.name).exists():  # the shell removes it after a stop
                    raise ConnectError(STOPPED_MESSAGE)
                deaths.count()
                print("the memory node died; starting it again on its memory")
                self.start()
                if self._is_ending.is_set():  # stop() has signalled the node that had died
                    self.stop()
        finally:
            remove_all(self._name)
            self._folder.cleanup()

    def stop(self) -> None:
        """Stop the node, so that ``serve`` returns."""
        self._is_ending.set()
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGTERM)

    def _lines(self) -> Iterator[str]:
        """Return the lines that the node prints; they end when the node ends."""
        assert self._process.stdout is not None, "it was opened as a pipe"
        return iter(self._process.stdout)

    def _close_pipe(self) -> None:
        if self._process.stdout is not None:
            self._process.stdout.close()

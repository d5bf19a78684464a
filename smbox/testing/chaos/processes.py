"""The processes of a chaos run: started, killed, paused and restarted."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Final

from smbox.errors import ConnectError
from smbox.testing.chaos import plan

MEMORY: Final = "512MiB"
END_S: Final = 90.0

_RESEND: Final = {"SMBOX_RESEND_AFTER_S": "0.3", "SMBOX_RESEND_AFTER_MAX_S": "1"}
_LEND: Final = {"SMBOX_LEND_FROM_NBYTES": "1"}
"""In every other life: the region is smaller than what is read without a copy by default."""


class Role:
    """A process that plays a part, again and again.

    Attributes:
        name: for people.
        life: how often it was started before.
        process: the present one; None between two lives.

    Args:
        name: for people, and of its files.
        folder: where its errors are written.
    """

    def __init__(self, name: str, folder: Path) -> None:
        self.name = name
        self.life = -1
        self.process: subprocess.Popen[str] | None = None
        self._folder = folder

    @property
    def is_immortal(self) -> bool:
        """Whether it has no further life to be killed into."""
        return False

    def command(self) -> list[str]:
        """Return the command of the present life."""
        raise NotImplementedError

    def start(self) -> None:
        """Begin the next life."""
        self.life += 1
        with self.errors.open("w") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", *self.command()],
                stdout=subprocess.PIPE,
                stderr=errors,
                stdin=subprocess.DEVNULL,
                text=True,
                env=os.environ | _RESEND | (_LEND if self.life % 2 else {}),
            )

    def send(self, number: int) -> None:
        """Send a signal, if it lives."""
        if self.process is not None:
            self.process.send_signal(number)

    def kill(self) -> None:
        """End this life at once."""
        if self.process is not None:
            self.process.kill()
            self._bury(self.process)

    def stop(self) -> str | None:
        """Ask it to end; returns what was wrong with that."""
        if self.process is None:
            return None
        self.process.terminate()
        try:
            self.process.wait(END_S)
        except subprocess.TimeoutExpired:
            self.process.send_signal(signal.SIGUSR1)  # writes down where it stands
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(1)
            self.kill()
            return f"{self.name} did not end; {self._told()}"
        if self.process.returncode == -signal.SIGTERM:  # it had not begun to listen
            self._bury(self.process)
        return self.failed()

    def failed(self) -> str | None:
        """Return what it said if it has ended by itself with an error."""
        if self.process is None or self.process.poll() is None:
            return None
        status = self.process.returncode
        self._bury(self.process)
        return None if status == 0 else f"{self.name} ended with {status}: {self._told()}"

    @property
    def errors(self) -> Path:
        """Where the present life writes its errors."""
        return self._folder / f"{self.name.replace(' ', '-')}-life-{self.life}.err"

    def _told(self) -> str:
        return self.errors.read_text()[-4000:].strip() or "it said nothing"

    def _bury(self, process: subprocess.Popen[str]) -> None:
        process.wait()
        if process.stdout is not None:
            process.stdout.close()
        self.process = None


class NodeRole(Role):
    """The memory node, at a unix socket.

    Args:
        node: its name.
        folder: of its socket and errors.
    """

    def __init__(self, node: str, folder: Path) -> None:
        super().__init__("the node", folder)
        self.node = node
        self.path = str(folder / "socket")

    @property
    def address(self) -> str:
        """Where clients connect."""
        return f"ipc://{self.path}"

    def command(self) -> list[str]:
        """Return the command of memnode."""
        command = ["memnode", "--bind", self.address, "--name", self.node, "--memory", MEMORY]
        return [*command, "--json", "--parent-pid", str(os.getpid())]

    def start_and_wait(self) -> None:
        """Start the node and wait until it serves."""
        self.start()
        assert self.process is not None
        assert self.process.stdout is not None
        if not self.process.stdout.readline():
            raise ConnectError(f"the node did not start: {self._told()}")


class ClientRole(Role):
    """One client.

    Args:
        client: its index.
        address: that it connects to.
        transport: "shm" or "tcp".
        folder: of its logs and errors.
        seed: of its choices.
    """

    def __init__(
        self, client: int, address: str, transport: str, folder: Path, seed: int
    ) -> None:
        super().__init__(f"{transport} client {client}", folder)
        self._client = client
        self._rest = (address, transport, str(folder))
        self._seed = seed

    @property
    def is_immortal(self) -> bool:
        """Whether it has no further life to be killed into."""
        return self.life >= plan.LIVES - 1

    def command(self) -> list[str]:
        """Return the command of the next worker."""
        numbers = (self._client, self.life, self._seed)
        return ["smbox.testing.chaos.worker", *self._rest, *map(str, numbers)]

"""What carries messages between a client's thread and a memory node: frames in, frames out.

A transport knows nothing of the protocol. It may lose whole messages, and it keeps the order
of those that arrive. One thread uses it at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias

Frame: TypeAlias = bytes | bytearray | memoryview


class Transport(Protocol):
    """One connection of one thread."""

    def send(self, frames: Sequence[Frame], *, lent: bool = False) -> bool:
        """Send one message; never waits.

        Args:
            frames: the message.
            lent: large frames but the first may be sent from the caller's memory, without a
                copy: it must not change until the reply is here, or ``is_released``.

        Returns:
            False: no room; nothing was sent.
        """
        ...

    def receive(self, timeout_s: float) -> list[Frame] | None:
        """Return the next message, or None after ``timeout_s``; 0 does not wait.

        Frames are valid as long as they are held; they are read-only.
        """
        ...

    def close(self) -> None:
        """Drop what is unsent, without waiting; see ``is_released``. Idempotent."""
        ...

    def is_released(self) -> bool:
        """Tell whether lent memory is no longer read; never waits."""
        ...

    def abandon(self) -> None:
        """Let go in a forked child, leaving the parent's connection as it is."""
        ...


OpenTransport: TypeAlias = Callable[[], Transport]
"""Makes a fresh connection to one node; what it cannot connect to yet, it tries by itself."""

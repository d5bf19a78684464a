"""Why a host cannot be found, for the error of a connection that never came about.

ZeroMQ resolves names in the background, again and again, and tells nobody that it fails: a node
may get its name later than its clients begin to look for it.
"""

from __future__ import annotations

import socket
import threading
from typing import Final

LOOK_UP_S: Final = 0.5
"""How long a name server may take; a slower one is no reason to keep an error waiting."""


def why_unresolved(address: str) -> str | None:
    """Tell why the host of ``tcp://host:port`` has no address; None if it has one, or may."""
    if not address.startswith("tcp://"):
        return None
    host = address.removeprefix("tcp://").rpartition(":")[0].strip("[]")
    reasons: list[str] = []

    def look_up() -> None:
        try:
            socket.getaddrinfo(host, None)
        except (OSError, UnicodeError) as error:
            reasons.append(getattr(error, "strerror", None) or str(error))

    thread = threading.Thread(target=look_up, name="smbox-look-up", daemon=True)
    thread.start()
    thread.join(LOOK_UP_S)
    return reasons[0] if reasons else None

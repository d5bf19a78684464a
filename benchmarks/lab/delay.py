"""A link that delays, where the kernel has no netem: frames wait in this program.

python benchmarks/lab/delay.py PORT FAR DELAY_MS

Both ends of the link are tap devices of this process. What the kernel sends to one of them is
read, kept for the time, and written to the other one. Frames keep the header of virtio
(IFF_VNET_HDR), so that packets of up to 64 KiB pass before segmentation and checksums; Python
then keeps up with 1 Gbit/s.
"""

from __future__ import annotations

import fcntl
import os
import select
import struct
import sys
import time
from collections import deque
from typing import Final

TUNSETIFF: Final = 0x400454CA  # linux/if_tun.h
TUNSETOFFLOAD: Final = 0x400454D0
IFF_TAP: Final = 0x0002
IFF_NO_PI: Final = 0x1000
IFF_VNET_HDR: Final = 0x4000
OFFLOADS: Final = 0x01 | 0x02 | 0x04  # checksum, TSO of IPv4, TSO of IPv6
FRAME_NBYTES_MAX: Final = 10 + 14 + (1 << 16)
TURN: Final = 64
"""Frames read from one end before the other gets its turn."""


class Way:
    """Frames on their way from one end to the other.

    Args:
        source: descriptor that they are read from.
        target: descriptor that they are written to.
        delay_s: how long each waits.
    """

    def __init__(self, source: int, target: int, delay_s: float) -> None:
        self.source = source
        self._target = target
        self._delay_s = delay_s
        self._waiting: deque[tuple[float, bytes]] = deque()

    @property
    def due_s(self) -> float | None:
        """When the next frame is to be written; None without one."""
        return self._waiting[0][0] if self._waiting else None

    def take(self) -> None:
        """Read what is there."""
        for _ in range(TURN):
            try:
                frame = os.read(self.source, FRAME_NBYTES_MAX)
            except BlockingIOError:
                return
            self._waiting.append((time.monotonic() + self._delay_s, frame))

    def give(self) -> None:
        """Write what has waited for long enough."""
        while self._waiting and self._waiting[0][0] <= time.monotonic():
            try:
                os.write(self._target, self._waiting.popleft()[1])
            except OSError:  # the other end is down: as on a cable, the frame is lost
                continue


def tap(name: str) -> int:
    """Make a tap device; return its descriptor, on which reading never blocks."""
    made = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    flags = IFF_TAP | IFF_NO_PI | IFF_VNET_HDR
    fcntl.ioctl(made, TUNSETIFF, struct.pack("16sH22x", name.encode(), flags))
    fcntl.ioctl(made, TUNSETOFFLOAD, OFFLOADS)
    return made


def forward(ends: tuple[int, int], delay_s: float) -> None:
    """Carry frames between both ends, for ever."""
    ways = (Way(*ends, delay_s), Way(*reversed(ends), delay_s))
    while True:
        dues = [way.due_s for way in ways if way.due_s is not None]
        left_s = max(0.0, min(dues) - time.monotonic()) if dues else None
        select.select(ends, (), (), left_s)
        for way in ways:
            way.take()
            way.give()


if __name__ == "__main__":
    both = (tap(sys.argv[1]), tap(sys.argv[2]))
    print("ready", flush=True)
    forward(both, float(sys.argv[3]) / 1000.0)

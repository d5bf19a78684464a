"""The window: how many requests of a channel may be in flight, whatever their size."""

from __future__ import annotations

import numpy as np
import pytest

from smbox.config import WINDOW_MAX
from smbox.memory.layout import STRIPE_NBYTES

COUNT = WINDOW_MAX + 24


class Counting:
    """A transport that counts the messages that were sent and are not answered.

    Attributes:
        most: the largest count so far.
    """

    def __init__(self, inner):
        self._inner = inner
        self._in_flight = self.most = 0

    def send(self, frames):
        is_sent = self._inner.send(frames)
        self._in_flight += is_sent
        self.most = max(self.most, self._in_flight)
        return is_sent

    def receive(self, timeout_s):
        frames = self._inner.receive(timeout_s)
        self._in_flight -= frames is not None
        return frames

    def __getattr__(self, name):
        return getattr(self._inner, name)


@pytest.mark.parametrize("verb", ["read", "change"])
@pytest.mark.parametrize("nbytes", [4, 64 << 10, 256 << 10, STRIPE_NBYTES, 4 * STRIPE_NBYTES])
def test_no_more_requests_are_in_flight_than_the_window(node, clients, verb, nbytes):
    transports = []

    def connect():
        transports.append(Counting(node.connect()))
        return transports[-1]

    client = clients(connect)
    info = client.create(nbytes, "uint8")
    arrays = [np.ones(nbytes, np.uint8) for _ in range(COUNT)]
    if verb == "read":
        works = [client.begun(client.read(info, array)) for array in arrays]
    else:
        works = [client.change(info, array) for array in arrays]
    for work in works:
        client.finish(work)
    # 256 KiB: the data of a window is just as much as a channel may have in flight.
    is_full = nbytes <= 256 << 10
    most = max(transport.most for transport in transports)
    assert most == WINDOW_MAX if is_full else 1 < most <= WINDOW_MAX
    if verb == "change":
        assert (client.get(info) == COUNT).all()

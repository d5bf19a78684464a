from __future__ import annotations

import numpy as np


def test_smoke(bench):
    peer = bench.peer()
    region = peer.create("w", (8,), init=1.0).body
    peer.put(region.address, np.arange(8, dtype=np.float32))
    peer.add(region.address, np.ones(8, np.float32), scale_by=2.0)
    assert peer.get(region.address, 32).tolist() == [2, 3, 4, 5, 6, 7, 8, 9]
    old = peer.fetch_add(region.address, np.ones(8, np.float32))
    assert np.frombuffer(old.payload, np.float32).tolist() == [2, 3, 4, 5, 6, 7, 8, 9]

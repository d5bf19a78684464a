"""One writer, several readers: weights are published, readers wait for the next version.

python examples/publish.py
"""

from __future__ import annotations

import multiprocessing

import numpy as np

import smbox

READERS = 2
ROUNDS = 3


def read(address: str, rank: int) -> None:
    with smbox.connect(address) as box:
        weights = box.attach("weights")
        out = np.empty(weights.shape, np.float32)
        seen = 0.0
        box.counter("readers").add(1)
        while seen < ROUNDS:
            version = weights.version
            weights.get(out=out)
            if out[0] == seen:
                weights.wait(version=version + 1, timeout_s=60.0)
                continue
            seen = float(out[0])
        box.counter(f"reader-{rank}").add(int(seen))


def main() -> None:
    with smbox.local(memory="64MiB") as box:
        weights = box.create("weights", shape=(1000,), dtype="float32", init=0.0)
        context = multiprocessing.get_context("spawn")
        readers = [context.Process(target=read, args=(box.address, r)) for r in range(READERS)]
        for reader in readers:
            reader.start()
        box.counter("readers").wait(at_least=READERS, timeout_s=100.0)
        for number in range(1, ROUNDS + 1):
            weights.put(np.full(1000, number, np.float32))
        for reader in readers:
            reader.join()
        print("readers saw", [box.counter(f"reader-{rank}").value for rank in range(READERS)])


if __name__ == "__main__":
    main()

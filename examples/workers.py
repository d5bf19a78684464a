"""Processes that share a sum: each adds to one region, nobody locks, nothing is lost.

python examples/workers.py
"""

from __future__ import annotations

import multiprocessing

import numpy as np

import smbox

WORKERS = 4
ADDITIONS = 25
ELEMENTS = 300_000  # a little more than two stripes


def work(address: str, rank: int) -> None:
    with smbox.connect(address) as box:
        total = box.attach("total")
        box.barrier("start", parties=WORKERS, timeout_s=60.0)
        for _ in range(ADDITIONS):
            total.accumulate(np.full(ELEMENTS, rank + 1, np.int32))
        box.counter("done").add(1)


def main() -> None:
    with smbox.local(memory="128MiB") as box:
        total = box.create("total", shape=(ELEMENTS,), dtype="int32", init=0)
        context = multiprocessing.get_context("spawn")
        workers = [context.Process(target=work, args=(box.address, r)) for r in range(WORKERS)]
        for worker in workers:
            worker.start()
        box.counter("done").wait(at_least=WORKERS, timeout_s=100.0)
        expected = ADDITIONS * sum(range(1, WORKERS + 1))
        print("every element is", expected, ":", bool((total.get() == expected).all()))
        for worker in workers:
            worker.join()


if __name__ == "__main__":
    main()

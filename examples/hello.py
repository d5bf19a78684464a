"""The shortest start: a memory node of our own, one region, one addition.

python examples/hello.py
"""

from __future__ import annotations

import numpy as np

import smbox


def main() -> None:
    with smbox.local(memory="64MiB") as box:
        region = box.create("hello", shape=(3,), dtype="float32", init=1.0)
        region.accumulate(np.array([1, 2, 3], np.float32), scale=10.0)
        print(region.get().tolist(), "version", region.version)


if __name__ == "__main__":
    main()

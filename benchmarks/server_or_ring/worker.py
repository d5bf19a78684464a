"""One worker of a row, on a host of the laboratory: ``worker.py ROW.json FOLDER``.

It does one iteration that does not count and then the row's iterations, all workers from the
same moment on, and leaves when it began and ended in FOLDER/RANK.json. The link is quiet for a
moment before and after, so that samples of half a second tell exactly what the iterations sent.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from lab.computing import WAIT_S

import smbox
from server_or_ring import trainers
from server_or_ring.rows import Row
from server_or_ring.waiting import Waiting
from smbox_torch.world import World

QUIET_S = 0.8


def main(words: Sequence[str]) -> None:
    """Do a worker's part."""
    row, folder = Row.from_json(Path(words[0]).read_text()), Path(words[1])
    torch.set_num_threads(1)
    world = World.from_env(os.environ)
    waiting = Waiting(row.layers(), row.scale)
    box = smbox.connect(timeout_s=trainers.TIMEOUT_S)
    model, optimizer = trainers.make(row, waiting, box)

    def iterate() -> None:
        optimizer.zero_grad()
        model().backward()
        optimizer.step()

    def meet(where: str) -> None:
        box.barrier(where, world.world_size, timeout_s=trainers.TIMEOUT_S)

    iterate()
    waiting.wait_s = float(os.environ[WAIT_S])
    meet("ready")
    time.sleep(QUIET_S)
    began_s = time.monotonic()
    for _ in range(row.timed):
        iterate()
    ended_s = time.monotonic()
    meet("ended")
    time.sleep(QUIET_S)
    told = {"began_s": began_s, "ended_s": ended_s, "rank": world.rank}
    (folder / f"{world.rank}.json").write_text(json.dumps(told))
    meet("told")
    os._exit(0)  # leaving in order would exchange once more, which no row counts


if __name__ == "__main__":
    main(sys.argv[1:])

"""Two MPI ranks: rank 1 keeps an array, and rank 0 asks it by messages to do what verbs do.

Run as ``mpirun -n 2 python -m memory_or_messages.mpi_program SIZE``. Rank 0 prints a line when
it is ready and answers each line of JSON on its standard input, ``[verb, nbytes, repeats]``, by
the mean time of a call in seconds. A call is a header, and the operand or the answer or both,
by ``Send`` and ``Recv`` of arrays; a put and an accumulate are answered by an empty message.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Final

import numpy as np
from mpi4py import MPI

from memory_or_messages.rows import VERBS
from memory_or_messages.ways import mean_s, pull

IDLE_S: Final = 0.001
"""Between two looks of the idle server: Open MPI's own waiting would use a whole core."""
END: Final = -1


def ask(size: int) -> None:
    """Be rank 0."""
    world, x = MPI.COMM_WORLD, np.ones(size, np.float32)
    d, done = np.ones(size, np.float32), np.zeros(0, np.float32)

    def call(verb: str, n: int) -> None:
        if verb != "get":
            world.Send(x[:n], 1)
        if verb == "elastic":
            world.Recv(d[:n], 1)
            np.subtract(x[:n], d[:n], out=x[:n])
        elif verb == "get":
            world.Send(done, 1)
            world.Recv(x[:n], 1)
        else:
            world.Recv(done, 1)

    print(json.dumps("ready"), flush=True)
    for line in sys.stdin:
        verb, nbytes, repeats = json.loads(line)
        world.Send(np.array([VERBS.index(verb), nbytes // 4, repeats]), 1)
        world.Recv(done, 1)  # the server has noticed: from here on it waits without sleeping
        seconds = mean_s(lambda verb=verb, n=nbytes // 4: call(verb, n), repeats)
        print(json.dumps(seconds), flush=True)
    world.Send(np.array([END, 0, 0]), 1)


def serve(size: int) -> None:
    """Be rank 1."""
    world, c = MPI.COMM_WORLD, np.ones(size, np.float32)
    taken, d, done = (
        np.ones(size, np.float32),
        np.ones(size, np.float32),
        np.zeros(0, np.float32),
    )
    told = np.zeros(3, np.int64)
    while True:
        while not world.Iprobe(0):
            time.sleep(IDLE_S)
        world.Recv(told, 0)
        if told[0] == END:
            return
        verb, n = VERBS[told[0]], told[1]
        world.Send(done, 0)
        for _ in range(told[2]):
            if verb == "put":
                world.Recv(c[:n], 0)
                world.Send(done, 0)
            elif verb == "get":
                world.Recv(done, 0)
                world.Send(c[:n], 0)
            elif verb == "accumulate":
                world.Recv(taken[:n], 0)
                np.add(c[:n], taken[:n], out=c[:n])
                world.Send(done, 0)
            else:
                world.Recv(taken[:n], 0)
                pull(taken[:n], c[:n], d[:n])
                world.Send(d[:n], 0)


if __name__ == "__main__":
    (ask, serve)[MPI.COMM_WORLD.Get_rank()](int(sys.argv[1]))

"""Two MPI ranks: rank 1 keeps an array, and rank 0 does to it what the verbs do.

Run as ``mpirun -n 2 python -m memory_or_messages.mpi_program SIZE``. Rank 0 prints a line when
it is ready and answers each line of JSON on its standard input, ``[form, verb, nbytes,
repeats]``, by the mean time of a call in seconds. There are two forms:

- ``messages``: rank 0 asks rank 1. A call is the operand or the answer or both, by ``Send`` and
  ``Recv`` of arrays; a put and an accumulate are answered by an empty message.
- ``rma``: one-sided (MPI-3.1, chapter 11), on a window of rank 1 that is locked once
  (``Lock_all``). A call ends with ``Flush``: it is complete at the target. An elastic
  exchange is a ``Get``, the arithmetic here, and an ``Accumulate``; others may come between.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Final

import numpy as np
from mpi4py import MPI

from memory_or_messages.rows import VERBS
from memory_or_messages.ways import MOVING_RATE, Floats, mean_s, pull

IDLE_S: Final = 0.001
"""Between two looks of the idle server: Open MPI's own waiting would use a whole core."""
END: Final = -1
FORMS: Final = ("messages", "rma")


def by_messages(x: Floats, d: Floats, done: Floats) -> dict[str, Callable[[int], object]]:
    """Return rank 0's calls; each takes the number of elements."""
    world = MPI.COMM_WORLD

    def change(n: int) -> None:
        world.Send(x[:n], 1)
        world.Recv(done, 1)

    def get(n: int) -> None:
        world.Send(done, 1)
        world.Recv(x[:n], 1)

    def elastic(n: int) -> None:
        world.Send(x[:n], 1)
        world.Recv(d[:n], 1)
        np.subtract(x[:n], d[:n], out=x[:n])

    return {"put": change, "get": get, "accumulate": change, "elastic": elastic}


def by_rma(window: MPI.Win, x: Floats, d: Floats) -> dict[str, Callable[[int], object]]:
    """Return rank 0's one-sided calls, likewise."""

    def put(n: int) -> None:
        window.Put(x[:n], 1)
        window.Flush(1)

    def get(n: int, into: Floats = x) -> None:
        window.Get(into[:n], 1)
        window.Flush(1)

    def accumulate(n: int, operand: Floats = x) -> None:
        window.Accumulate(operand[:n], 1, op=MPI.SUM)
        window.Flush(1)

    def elastic(n: int) -> None:
        get(n, d)
        np.subtract(x[:n], d[:n], out=d[:n])
        np.multiply(d[:n], np.float32(MOVING_RATE), out=d[:n])
        accumulate(n, d)
        np.subtract(x[:n], d[:n], out=x[:n])

    return {"put": put, "get": get, "accumulate": accumulate, "elastic": elastic}


def ask(size: int, window: MPI.Win) -> None:
    """Be rank 0."""
    world, done = MPI.COMM_WORLD, np.zeros(0, np.float32)
    x, d = np.ones(size, np.float32), np.ones(size, np.float32)
    forms = {"messages": by_messages(x, d, done), "rma": by_rma(window, x, d)}
    print(json.dumps("ready"), flush=True)
    for line in sys.stdin:
        form, verb, nbytes, repeats = json.loads(line)
        told = [FORMS.index(form), VERBS.index(verb), nbytes // 4, repeats]
        world.Send(np.array(told), 1)
        world.Recv(done, 1)  # the server has noticed: from here on it waits without sleeping
        call = forms[form][verb]
        seconds = mean_s(lambda call=call, n=nbytes // 4: call(n), repeats)
        if form == "rma":
            world.Send(done, 1)
        print(json.dumps(seconds), flush=True)
    world.Send(np.array([END, 0, 0, 0]), 1)


def serve(size: int, c: Floats) -> None:
    """Be rank 1."""
    world, done = MPI.COMM_WORLD, np.zeros(0, np.float32)
    taken, d = np.ones(size, np.float32), np.ones(size, np.float32)
    told = np.zeros(4, np.int64)
    while True:
        while not world.Iprobe(0):
            time.sleep(IDLE_S)
        world.Recv(told, 0)
        if told[0] == END:
            return
        form, verb, n = FORMS[told[0]], VERBS[told[1]], told[2]
        world.Send(done, 0)
        if form == "rma":
            world.Recv(done, 0)  # where MPI needs the target's help, it works in here
            continue
        for _ in range(told[3]):
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


def main(size: int) -> None:
    """Be either rank."""
    rank = MPI.COMM_WORLD.Get_rank()
    window = MPI.Win.Allocate(4 * size * rank, 4, comm=MPI.COMM_WORLD)
    window.Lock_all()
    if rank:
        c = np.frombuffer(window.tomemory(), np.float32)
        c[:] = 1.0
        serve(size, c)
    else:
        ask(size, window)
    window.Unlock_all()
    window.Free()


if __name__ == "__main__":
    main(int(sys.argv[1]))

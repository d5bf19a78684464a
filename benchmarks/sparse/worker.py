"""The processes that learn: they stay for all runs, and each run takes as many as it needs."""

from __future__ import annotations

import multiprocessing
import time
import traceback
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any, Final, Self

import numpy as np
import torch
from result_files import Result

import smbox
from sparse import text
from sparse.learner import Learner, Place
from sparse.methods import METHODS
from sparse.problem import Batch, Problem, accuracy, batches
from sparse.rows import Settings

__all__ = ["Workers", "learn"]

MEMORY: Final = "512MiB"
MEET_TIMEOUT_S: Final = 120.0

Found = dict[str, Any]


def learn(settings: Settings, place: Place, data: tuple[text.Examples, text.Examples]) -> Found:
    """Do one worker's part of a run.

    Returns:
        The figures; of rank 0 also the objective over time. It is computed from copies of the
        weights after the run, so that no step waits for it.
    """
    train, test = data
    problem = Problem(settings.row.loss, train)
    method = METHODS[settings.row.method]
    mine = np.arange(place.rank, len(train), place.workers)
    random = np.random.default_rng([settings.seed, place.rank])
    epochs = [batches(problem, mine, method.batch, random) for _ in range(settings.epochs)]
    learner = method.build(problem, place)
    place.box.barrier(f"{place.name}.start", place.workers, timeout_s=MEET_TIMEOUT_S)
    run = Run(settings, learner, has_looks=place.rank == 0)
    run.go(epochs)
    place.box.barrier(f"{place.name}.end", place.workers, timeout_s=MEET_TIMEOUT_S)
    if place.rank == 0:
        run.looks.append((time.monotonic() - run.began_s, learner.weights()))
    learner.close()
    return run.found | ({"judged": judged(problem, test, run.looks)} if run.looks else {})


def judged(problem: Problem, test: text.Examples, looks: Sequence[tuple[float, Any]]) -> Result:
    """Return what the copies of the weights, the last one above all, are worth."""
    train = problem.train
    positive = float((test.label > 0.0).mean())
    curve = [(seconds, problem.objective(weights)) for seconds, weights in looks]
    return {
        "curve": curve,
        "objective": curve[-1][1],
        "accuracy": accuracy(looks[-1][1], test),
        "majority": max(positive, 1.0 - positive),
        "examples": [len(train), len(test)],
        "nonzeros": len(train.index) / len(train),
        "most_frequent": int(train.counts().max()) / len(train),
        "data": train.digest(),
    }


class Run:
    """One worker's steps, timed.

    Args:
        settings: of the run.
        learner: steps.
        has_looks: whether to copy the weights now and then.

    Attributes:
        found: the figures, after ``go``.
        began_s: when the first step began, of the host's monotonic clock.
        looks: seconds since the beginning, and the weights at that time.
    """

    def __init__(self, settings: Settings, learner: Learner, *, has_looks: bool) -> None:
        self._settings = settings
        self._learner = learner
        self._has_looks = has_looks
        self.found: Found = {}
        self.looks: list[tuple[float, Any]] = []
        self.began_s = 0.0

    def go(self, epochs: Sequence[Sequence[Batch]]) -> None:
        """Step along all batches, or until the limit of time."""
        step, count = self._learner.step, sum(map(len, epochs))
        every = max(1, count // (self._settings.looks + 1)) if self._has_looks else count + 1
        updates = samples = 0
        began_cpu_s = time.process_time()
        self.began_s = began_s = time.monotonic()
        limit_s = began_s + self._settings.limit_s
        if self._has_looks:
            self.looks.append((0.0, self._learner.weights()))
        rates = [self._settings.lr(epoch) for epoch in range(len(epochs))]
        for lr, batch in (
            (lr, one) for lr, mine in zip(rates, epochs, strict=True) for one in mine
        ):
            step(batch, lr)
            updates += 1
            samples += len(batch.label)
            now_s = time.monotonic()
            if updates % every == 0:
                self.looks.append((now_s - began_s, self._learner.weights()))
            if now_s > limit_s:
                break
        self._learner.end()
        self.found = {
            "began_s": began_s,
            "ended_s": time.monotonic(),
            "cpu_s": time.process_time() - began_cpu_s,
            "updates": updates,
            "samples": samples,
            "planned": count,
        }


def _work(rank: int, address: str, share: float, semaphore: Any, pipe: Connection) -> None:
    """Do the runs that come through the pipe, until None comes."""
    torch.set_num_threads(1)
    data = text.load(share)
    with smbox.connect(address) as box, suppress(EOFError):
        while (told := pipe.recv()) is not None:
            name, settings = told
            place = Place(box, name, rank, settings.row.workers, semaphore)
            try:
                pipe.send(learn(settings, place, data))
            except Exception:
                pipe.send({"error": traceback.format_exc()})
                raise


class Workers:
    """The processes, on a memory node of their own. A context manager.

    Args:
        share: of the source files that examples are taken from.
        count: of processes; no run takes more.
    """

    def __init__(self, share: float, count: int) -> None:
        self._share = share
        self._count = count
        self._stack = ExitStack()
        self._pipes: list[Connection] = []
        self._runs = 0

    def __enter__(self) -> Self:
        text.load(self._share)  # once, before all of them do
        context = multiprocessing.get_context("spawn")
        self._semaphore = context.Lock()  # is gone for all where nobody here holds on to it
        box = self._stack.enter_context(smbox.local(MEMORY))
        for rank in range(self._count):
            here, there = context.Pipe()
            told = (rank, box.address, self._share, self._semaphore, there)
            process = context.Process(target=_work, args=told, daemon=True)
            process.start()
            there.close()
            self._pipes.append(here)
            self._stack.callback(_end, process, here)
        return self

    def run(self, settings: Settings) -> Result:
        """Do one run.

        Raises:
            RuntimeError: a worker failed; the message holds what it says.
        """
        self._runs += 1
        pipes = self._pipes[: settings.row.workers]
        for pipe in pipes:
            pipe.send((f"run{self._runs}", settings))
        found = []
        for rank, pipe in enumerate(pipes):
            try:
                each = pipe.recv()
            except (EOFError, ConnectionError) as error:
                raise RuntimeError(f"worker {rank} ended") from error
            if "error" in each:
                raise RuntimeError(f"worker {rank} failed:\n{each['error']}")
            found.append(each)
        return _together(settings, found)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End the processes and the node."""
        if error is None:
            for pipe in self._pipes:
                pipe.send(None)
        self._stack.close()


def _end(process: Any, pipe: Connection) -> None:
    """Let a process end, and kill it if it does not."""
    pipe.close()
    process.join(timeout=10.0)
    process.kill()
    process.join()


def _together(settings: Settings, found: Sequence[Any]) -> Result:
    """Return the result of a run, ready for JSON."""
    seconds = max(each["ended_s"] for each in found) - min(each["began_s"] for each in found)
    updates = sum(each["updates"] for each in found)
    told: Result = found[0]["judged"]
    return told | {
        "settings": settings.as_json(),
        "seconds": seconds,
        "updates": updates,
        "updates_per_s": updates / seconds,
        "examples_per_s": sum(each["samples"] for each in found) / seconds,
        "cpu_us": 1e6 * sum(each["cpu_s"] for each in found) / updates,
        "done": updates / sum(each["planned"] for each in found),
    }

"""PendingRuns: executes the runs of an experiment that have no result file yet."""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Generic

import result_files
from estimator import Estimator, duration
from result_files import R, Result
from rich.console import Console
from rich.progress import BarColumn, Progress, TimeElapsedColumn

from smbox_torch.launching.launcher import terminable

COLUMNS = ("{task.description}", BarColumn(20), "{task.percentage:3.0f} %", TimeElapsedColumn())

Tick = Callable[[float], None]
"""Callback that takes a run's progress, from 0 to 1."""


class PendingRuns(Generic[R]):
    """Executes pending runs and prints the estimated remaining time.

    Args:
        wanted: all runs of the experiment, in order.
        folder: folder of the result files.
        estimator: estimates the time of a run.
    """

    def __init__(self, wanted: Sequence[R], folder: Path, estimator: Estimator[R]) -> None:
        self.runs = result_files.missing(folder, wanted)
        self._wanted = len(wanted)
        self._folder = folder
        self._estimator = estimator
        self._console = Console()

    def report(self) -> None:
        """Print the number of pending runs and the time that they will take."""
        total = duration(self._seconds(self.runs))
        self._say(f"{len(self.runs)} of {self._wanted} runs are missing: some {total}")

    def run(
        self,
        do: Callable[[R, Tick], Result],
        told: Callable[[R, Result], str],
        *,
        budget_s: float = math.inf,
        failures: tuple[type[Exception], ...] = (),
    ) -> list[str]:
        """Execute the pending runs, or those that fit into the budget.

        Args:
            do: executes a run and returns its result.
            told: formats a run's result in one line.
            budget_s: stop before the first run that would end later, in seconds.
            failures: errors of a run after which the next runs are still executed.

        Returns:
            Names of the runs that failed.
        """
        failed = []
        began_s = time.monotonic()
        with terminable(), Progress(*COLUMNS, console=self._console) as progress:
            bar = progress.add_task("", total=1.0)
            for index, run in enumerate(self.runs):
                left_s, spent_s = self._seconds(self.runs[index:]), time.monotonic() - began_s
                here = f"run {index + 1} of {len(self.runs)}, {duration(left_s)} to go"
                progress.update(bar, description=here, completed=spent_s / (spent_s + left_s))
                if spent_s + self._estimator.seconds(run) > budget_s:
                    self._say(f"the budget ends before run {index + 1}")
                    break
                one = progress.add_task(run.name, total=None)
                tick = functools.partial(_tick, progress, one)
                try:
                    self._say(f"{run.name:28} {told(run, self._do(run, do, tick))}")
                except failures as error:
                    failed.append(run.name)
                    self._say(f"{run.name}: failed: {error}")
                progress.remove_task(one)
        return failed

    def _do(self, run: R, do: Callable[[R, Tick], Result], tick: Tick) -> Result:
        """Execute one run and store its result."""
        began_s = time.monotonic()
        result = do(run, tick)
        self._estimator.learn(run, result.get("took_s", time.monotonic() - began_s))
        result_files.store(self._folder / run.file_name, result)
        return result

    def _seconds(self, runs: Sequence[R]) -> float:
        return sum(map(self._estimator.seconds, runs))

    def _say(self, line: str) -> None:
        self._console.print(line, markup=False, soft_wrap=True)


def _tick(progress: Progress, bar: int, done: float) -> None:
    progress.update(bar, total=1.0, completed=done)

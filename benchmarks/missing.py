"""The runs of an experiment whose results are missing: told, done one by one, and kept."""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Generic

import kept
from estimator import Estimator, duration
from kept import R, Result
from rich.console import Console
from rich.progress import BarColumn, Progress, TimeElapsedColumn

from smbox_torch.launching.launcher import terminable

COLUMNS = ("{task.description}", BarColumn(20), "{task.percentage:3.0f} %", TimeElapsedColumn())

Tick = Callable[[float], None]
"""To be called with a run's progress, from 0 to 1."""


class Missing(Generic[R]):
    """Does runs, and tells how long the others will take.

    Args:
        wanted: runs that are asked for, in order.
        folder: of the results.
        estimator: of their times.
    """

    def __init__(self, wanted: Sequence[R], folder: Path, estimator: Estimator[R]) -> None:
        self.runs = kept.missing(folder, wanted)
        self._wanted = len(wanted)
        self._folder = folder
        self._estimator = estimator
        self._console = Console()

    def tell(self) -> None:
        """Say how long the missing runs will take."""
        total = duration(self._seconds(self.runs))
        self._say(f"{len(self.runs)} of {self._wanted} runs are missing: some {total}")

    def go(
        self,
        do: Callable[[R, Tick], Result],
        told: Callable[[R, Result], str],
        *,
        budget_s: float = math.inf,
        failures: tuple[type[Exception], ...] = (),
    ) -> list[str]:
        """Do the missing runs, or those that fit into the budget.

        Args:
            do: does a run.
            told: words a run's result, in one line.
            budget_s: a run that would end later is not started, and none after it.
            failures: errors of a run that leave the others to be done.

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
        """Do one run and keep its result."""
        began_s = time.monotonic()
        result = do(run, tick)
        self._estimator.learn(run, result.get("took_s", time.monotonic() - began_s))
        kept.store(self._folder / run.file_name, result)
        return result

    def _seconds(self, runs: Sequence[R]) -> float:
        return sum(map(self._estimator.seconds, runs))

    def _say(self, line: str) -> None:
        self._console.print(line, markup=False, soft_wrap=True)


def _tick(progress: Progress, bar: int, done: float) -> None:
    progress.update(bar, total=1.0, completed=done)

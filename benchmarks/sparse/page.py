"""The page of the experiment: tables, comparisons and picture of the results that are there."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from pages import NOT_MEASURED, fill, table
from plots import panels
from result_files import Result

from sparse.methods import METHODS
from sparse.problem import LOSSES
from sparse.rows import Row

__all__ = ["PAGE", "told", "write"]

PAGE: Final = "sparse_learning.md"
TITLES: Final = {"svm": "SVM (hinge loss)", "logistic": "Logistic regression"}
NUMBERS: Final = (1, 2, 4)
NEAR: Final = 1.05
"""Times the objective that plain torch ends with: how near a method should come."""

COMPARED: Final = (
    ("hogwild", "plain"),
    ("hogwild", "semaphore"),
    ("hogwild", "lock"),
    ("hogwild", "hogwild_pp"),
    ("hogwild", "dogwild"),
    ("stores", "stores_semaphore"),
    ("stores", "rows"),
    ("stores", "hogwild"),
)

AT_EACH: Final = {"semaphore", "stores_semaphore"}
"""The locked baselines: a method is compared with them at each number of processes."""

Results = dict[Row, list[Result]]


def write(results: Results, docs: Path) -> None:
    """Write the results into their page, and draw the picture beside it.

    Args:
        results: by row.
        docs: folder of the page.

    Raises:
        ValueError: the page lacks the comments of the results, or these are of different
            machines or data; nothing was written.
    """
    picture = (docs / PAGE).with_suffix(".png")
    shown = told(results, picture.name) if results else NOT_MEASURED
    fill(docs / PAGE, {"results": f"\n{shown}\n"})
    if results:
        draw(results, picture)


def told(results: Results, picture: str) -> str:
    """Return the results as Markdown.

    Args:
        results: by row.
        picture: file name of the plot.

    Raises:
        ValueError: they are of different machines or data.
    """
    parts = [_about(results), f"![objective against time]({picture})"]
    for loss, title in TITLES.items():
        mine = {row: each for row, each in results.items() if row.loss == loss}
        if mine:
            parts += [f"### {title}", rates(mine), ends(mine), comparisons(mine)]
    return "\n\n".join(parts)


def _about(results: Results) -> str:
    every = [each for mine in results.values() for each in mine]
    first = every[0]
    alike = {(str(each["machine"]), each["data"]) for each in every}
    if len(alike) > 1:
        raise ValueError("results of different machines or data: delete the older ones")
    machine, (train, test) = first["machine"], first["examples"]
    runs = max(map(len, results.values()))
    return (
        f"{machine['cpu']}, {machine['cores']} cores; Python {machine['python']}, numpy "
        f"{machine['numpy']}, torch {machine['torch']}. {train:,} training and {test:,} test "
        f"examples (digest {first['data']}) with a mean of {first['nonzeros']:.0f} non-zeros "
        f"each; the most frequent feature is in {first['most_frequent']:.0%} of them. The "
        f"larger class is {first['majority']:.1%} of the test set. "
        + ("One run of each row." if runs == 1 else f"Medians of {runs} runs of each row.")
    )


def _median(mine: Sequence[Result], name: str) -> float:
    return float(statistics.median(each[name] for each in mine))


Cell = Callable[[Sequence[Result]], str]


def _cells(results: Results, method: str, *cells: Cell) -> list[str]:
    """Return a method's cells of a table, each for 1, 2 and 4 processes."""
    by_number = {row.workers: mine for row, mine in results.items() if row.method == method}
    return [
        cell(by_number[number]) if number in by_number else ""
        for cell in cells
        for number in NUMBERS
    ]


def _methods(results: Results) -> list[str]:
    present = {row.method for row in results}
    return [name for name in METHODS if name in present]


def rates(results: Results) -> str:
    """Return the table of updates per second, and of the speed-up by the most processes."""
    head = ["method", "batch", *(f"updates/s, {n}" for n in NUMBERS), "speed-up"]
    head += [f"CPU us/update, {n}" for n in NUMBERS]
    by = {
        (row.method, row.workers): _median(mine, "updates_per_s")
        for row, mine in results.items()
    }
    lines = []
    for name in _methods(results):
        updates = _cells(results, name, lambda mine: f"{_median(mine, 'updates_per_s'):,.0f}")
        cpu = _cells(results, name, lambda mine: f"{_median(mine, 'cpu_us'):,.0f}")
        most = max(row.workers for row in results if row.method == name)
        is_known = most > 1 and (name, 1) in by
        speed_up = _ratio(by[name, most] / by[name, 1]) if is_known else ""
        lines.append([METHODS[name].title, str(METHODS[name].batch), *updates, speed_up, *cpu])
    return table(head, lines)


def ends(results: Results) -> str:
    """Return the table of what the runs reach; a run that the limit ended is marked."""
    plain = [mine for row, mine in results.items() if row.method == "plain"]
    target = NEAR * _median(plain[0], "objective") if plain else None

    def objective(mine: Sequence[Result]) -> str:
        done = _median(mine, "done")
        mark = "" if done == 1.0 else f" ({done:.0%} done)"
        return f"{_median(mine, 'objective'):.4f}{mark}"

    def seconds(mine: Sequence[Result]) -> str:
        if target is None:
            return ""
        found = statistics.median(seconds_to(target, each) for each in mine)
        return "never" if math.isinf(found) else f"{found:.2f}"

    head = ["method", *(f"objective, {n}" for n in NUMBERS)]
    head += [f"test accuracy, {n}" for n in NUMBERS]
    head += [f"s to {'near' if target is None else f'{target:.4f}'}, {n}" for n in NUMBERS]
    lines = [
        [
            METHODS[name].title,
            *_cells(
                results,
                name,
                objective,
                lambda mine: f"{_median(mine, 'accuracy'):.1%}",
                seconds,
            ),
        ]
        for name in _methods(results)
    ]
    return table(head, lines)


def seconds_to(target: float, result: Result) -> float:
    """Return when a look first found the objective at or below the target; else infinity."""
    return min((s for s, objective in result["curve"] if objective <= target), default=math.inf)


def comparisons(results: Results) -> str:
    """Return how pairs of methods compare, as a list."""
    rate = {
        (row.method, row.workers): _median(mine, "examples_per_s")
        for row, mine in results.items()
    }
    most = max(row.workers for row in results)
    lines = []
    for one, other in COMPARED:
        last = min(most, max(METHODS[other].workers))
        for number in NUMBERS if other in AT_EACH else (last,):
            if not {(one, number), (other, number)} <= rate.keys():
                continue
            ratio = rate[one, number] / rate[other, number]
            lines.append(
                f"- {METHODS[one].title} against {METHODS[other].title}, {number} "
                f"process{'es' if number > 1 else ''}: {_ratio(ratio)} the examples/s."
            )
    return "\n".join(lines)


def _ratio(ratio: float) -> str:
    """Return it in words; bold where it is a loss."""
    return f"{ratio:.2f} times" if ratio >= 1.0 else f"**{ratio:.2f} times**"


def draw(results: Results, path: Path) -> None:
    """Draw the objective against time: a line of panels for each loss.

    Left the methods with torch, right those without; of each the run with the most processes,
    and dashed the run of one.
    """
    losses = [loss for loss in LOSSES if any(row.loss == loss for row in results)]
    with panels(path, (len(losses), 2), (11, 4.2 * len(losses)), which="both") as lines:
        for pair, loss in zip(lines, losses, strict=True):
            for axes, is_bare in zip(pair, (False, True), strict=True):
                mine = {
                    row: each[0]
                    for row, each in results.items()
                    if row.loss == loss and (METHODS[row.method].batch == 1) == is_bare
                }
                _curves(axes, mine)
                axes.set_title(f"{TITLES[loss]}, {'numpy' if is_bare else 'torch'}")


def _curves(axes: Any, results: dict[Row, Result]) -> None:
    for number, name in enumerate(dict.fromkeys(row.method for row in results)):
        runs = {row.workers: each for row, each in results.items() if row.method == name}
        for workers in {min(runs), max(runs)}:
            seconds, objective = zip(*runs[workers]["curve"], strict=True)
            is_most = workers == max(runs)
            label = f"{METHODS[name].title.replace('`', '')} x {workers}"
            axes.plot(
                seconds[1:],
                objective[1:],
                "-" if is_most else "--",
                color=f"C{number}",
                linewidth=1.6 if is_most else 0.8,
                label=label if is_most else None,
            )
    axes.set_xlabel("seconds")
    axes.set_ylabel("objective on the training examples")
    axes.set_xscale("log")
    axes.set_yscale("log")
    if results:
        axes.legend(fontsize="small")

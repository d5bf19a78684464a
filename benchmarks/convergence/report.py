"""Turn the results of ``sweep.py`` into docs/convergence.md and docs/convergence.png.

python benchmarks/convergence/report.py out/convergence/epochs-8-share-1

Every run of a folder has the same setting, and the page names it.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from drawing import draw
from tables import Runs, accuracy, accuracy_table, exchange_table, mean, staleness_table
from ways import MOMENTUM, WARM_UP, WAYS

GOAL_POINTS = 1.5
GOAL_WAYS = ("easgd-10", "hybrid")
METHOD = """\
Every way trains the same network (three convolutions of 16, 32 and 64 channels, each with
ReLU and 2 x 2 max pooling, and one linear layer: 33 834 parameters, no batch norm) on the same
pictures: CIFAR-10, re-encoded as JPEG, which costs a point or two against the original files,
so compare only figures of this page with each other. No augmentation. Workers have disjoint
shards. **All ways see equally many pictures**, each picture equally often; only the two crowds
of 16 workers, which are there to show where a scheme breaks, see a quarter of them.

SGD with momentum {momentum:g} (EAMSGD: its own, as large); the learning rate rises over the
first {warm_up:.0%} of a run and falls linearly to zero. Learning rates were chosen from a few
by short runs on a fifth of the data, moving rates also by runs of two epochs over all of it;
both were judged on the test set, with a seed that is not among these. It was no thorough
search, and there was none for SSP, and for the others at periods that are there to show a
trend (64, and Downpour at 10): they have the settings of their neighbours. Four workers with
batches of 8 take as many steps as one process with batches of 32. What is judged at the end is
what the way shares: the center, the common model, or the one process's model, on all {tests}
test pictures, once.

Workers are processes with one thread each, started by smbox's own launcher; those of one node
use mapped memory, HybridSGD's two nodes speak tcp over loopback. Wall time is from the moment
when all workers have met until the last has done its steps. CPU time is that of all workers
and of the memory node, divided by the machine's cores.

**Read the times with care.** This machine has {cores} cores. Four workers share them, and the
one process has one of them to itself, so nothing here says how training scales; staleness is
what the scheduler makes of it: workers that are not running do not exchange. What can be read:
whether the shared model learns as well from the same pictures, how many bytes that took, and
how much work."""


COLUMNS = """\
Staleness: exchanges of others between two of one worker. Hidden: share of the time of exchanges
that passed behind computation; only ways with an update thread, or an averaging inside
backward, can hide any. DDP does not count its bytes; they are those of a ring,
`2 (W - 1) / W` of the model each way. Hogwild moves none: its workers write to one mapped
model."""

CROWDS = """\
ShmCaffe's moving rate of 0.2 with 16 workers makes `workers x moving_rate` 3.2. With read and
add as separate operations, 1.9 is about the bound in the worst case, when all workers read the
same center before any of them adds; the fused exchange has no bound that depends on the number
of workers ([EASGD](algorithms/easgd.md)). How near the worst case a run comes is a matter of
timing, and on {cores} cores 16 workers mostly take turns, which is kind to SEASGD. As measured,
whatever it shows:
"""

AGAIN = """\
To repeat it:

    python benchmarks/convergence/sweep.py --data cifar10.tar.gz --epochs {epochs:g} \\
        --share {share:g}
    python benchmarks/convergence/report.py out/convergence/epochs-{epochs:g}-share-{share:g}"""


def load(folder: Path) -> Runs:
    """Read all results of a folder, by way in the order of WAYS, then by seed.

    Raises:
        SystemExit: there are none, or the one process is not among them.
    """
    found = [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]
    found.sort(key=lambda run: run["seed"])
    runs = {
        name: mine for name in WAYS if (mine := [r for r in found if r["way"]["name"] == name])
    }
    if "one" not in runs:
        raise SystemExit(f"no run of one process in {folder}: nothing to compare with")
    return runs


def page(runs: Runs, note: str = "") -> str:
    """Return the whole page as Markdown; the note is about the circumstances of the runs."""
    one = runs["one"][0]
    method = METHOD.format(
        momentum=MOMENTUM,
        warm_up=WARM_UP,
        cores=one["cores"],
        tests=one["test_pictures"] or "10 000",
    )
    parts = [
        "# Convergence: every way of training on equal samples",
        " ".join([setting(runs), note]).strip(),
        "![accuracy over the run, and in the end](convergence.png)",
        goals(runs),
        "## Accuracy and work",
        accuracy_table(runs),
        "## What was exchanged",
        exchange_table(runs),
        COLUMNS,
        "## Staleness",
        staleness_table(runs),
        "## Where three-step exchanges break",
        crowds(runs),
        "## Method",
        method,
        AGAIN.format(epochs=one["epochs"], share=one["share"]),
    ]
    return "\n\n".join(parts) + "\n"


def setting(runs: Runs) -> str:
    """Say for which runs the page stands."""
    one = runs["one"][0]
    seeds = sorted({run["seed"] for mine in runs.values() for run in mine})
    lacking = {
        way: len(seeds) - len(mine) for way, mine in runs.items() if len(mine) < len(seeds)
    }
    absent = [way for way in WAYS if way not in runs]
    words = (
        f"**These figures stand for:** {one['epochs']:g} epochs over {one['share']:.0%} of the "
        f"training set ({one['samples']:,} pictures in all), seeds "
        f"{', '.join(map(str, seeds))}, {one['cores']} cores, torch {one['torch']}."
    )
    if lacking:
        words += f" Runs still missing: {lacking}."
    if absent:
        words += f" Ways not run: {', '.join(absent)}."
    return words


def goals(runs: Runs) -> str:
    """Say whether the ways that should come near one process do."""
    best = mean(runs["one"], accuracy)
    lines = []
    for name in GOAL_WAYS:
        if name in runs:
            behind = best - mean(runs[name], accuracy)
            verdict = "met" if behind <= GOAL_POINTS else "**missed**"
            lines.append(
                f"- {WAYS[name].title}: {behind:+.1f} points behind one process "
                f"(goal: at most {GOAL_POINTS:g}), {verdict}"
            )
    return "\n".join(lines)


def crowds(runs: Runs) -> str:
    """Say what became of 16 workers at a moving rate of 0.2."""
    lines = [CROWDS.format(cores=runs["one"][0]["cores"])]
    for name in ("seasgd-16", "easgd-16"):
        if name in runs:
            ends = [_end(run) for run in runs[name]]
            lines.append(f"- {WAYS[name].title}: " + "; ".join(ends) + ".")
    return "\n".join(lines)


def _end(run: dict[str, Any]) -> str:
    loss = "no number" if run["loss"] is None else f"{run['loss']:.2f}"
    return f"seed {run['seed']}: loss in the end {loss}, center {accuracy(run):.1f} %"


def main(words: Sequence[str] | None = None) -> None:
    """Write the page and its picture."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="of one setting: OUT/epochs-E-share-S")
    parser.add_argument("--docs", type=Path, default=Path("docs"))
    parser.add_argument("--note", default="", help="what else ran, or the like")
    read = parser.parse_args(words)
    runs = load(read.folder)
    (read.docs / "convergence.md").write_text(page(runs, read.note))
    draw(runs, read.docs / "convergence.png")


if __name__ == "__main__":
    main()

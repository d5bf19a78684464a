"""Turn the results of ``sweep.py`` into docs/convergence.md and docs/convergence.png.

python benchmarks/convergence/report.py

The page contains the results that exist, and names those that are missing.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))  # where result_files.py is

import command_line
import pages
import sweep
from catalog import CROWDS, ROWS, SCENARIOS, TABLES, WORKERS
from claims import FINDINGS, GOALS
from drawing import draw
from results import Results, load, seed
from rows import EPOCHS, LOOKS, SHARE, Settings
from sweep import OUT, SEEDS
from tables import (
    MARK,
    accuracy_table,
    exchange_table,
    scenario_table,
    staleness_table,
    time_table,
)
from trainers import WARM_UP

PICTURE = "![accuracy in the end, and over the run](convergence.png)"

INTERVALS = """\
± is half of a 95 % confidence interval: Student's t over the seeds, and for a difference over
the differences of runs with equal seeds. A row has one run and no interval if it has no goal
and no published result, and [the advice](algorithms/README.md) does not need one. A goal is
**met** if the entire interval meets it, **missed** if no part of it does, and **undecided**
otherwise. Rows whose goals are undecided after five seeds run with five more seeds, which were
declared in advance. There is no third set."""

SETTINGS = """\
The moving rate is the share of the distance between worker and center that an exchange
removes. The default is 0.45, or 0.9 / workers where read and add are separate operations.
Momentum is that of the inner `torch.optim.SGD`; "own" marks a momentum of the algorithm
itself. The baseline of a row is one process that trains on equally many samples; a row without
momentum is compared with one process without momentum."""

TIMES = """\
Each run evaluates the center, or the common model, {looks} times on 1000 validation pictures.
The table shows the first evaluation that reached {mark:.0%}. Seconds exclude
the evaluations."""

SCENARIO_WORDS = """\
All runs of this table train on a quarter of the samples. The last of 4 workers either computes
at a quarter of the others' speed (it sleeps), or is killed with SIGKILL after half of its
steps, or joins when the first worker has done half of its steps. For HybridSGD, a node of 2
workers joins. The other workers take over the missing steps, so that all runs train on equally
many samples. SyncGroup has no row for a joining worker because the size of its group is fixed.
If a run stopped with an error, its accuracy is that of the model at that moment."""

COLUMNS = """\
Staleness is the number of exchanges of other workers between two exchanges of one worker.
Hidden is the share of the exchange time that overlapped with computation. Only algorithms with
an update thread, or with averaging during backward, can hide any; EASGD hides none on mapped
memory. DDP does not count its bytes; the table shows those of a ring, `2 (W - 1) / W` of the
model in each direction. Hogwild transfers nothing: its workers write to one mapped model."""

CROWD_WORDS = """\
With ShmCaffe's moving rate of 0.2 and 16 workers, `workers x moving_rate` is 3.2. If read and
add are separate operations, the bound is about 1.9 in the worst case, in which all workers
read the same center before any of them adds. The fused exchange has no bound that depends on
the number of workers ([EASGD](algorithms/easgd.md)). Timing decides how close a run comes to
the worst case: 16 workers on a few cores mostly run in turns, which favors SEASGD."""

REMARKS = {
    WORKERS: "All rows have period 4. The rows of the table of periods have 4 workers.",
    CROWDS: CROWD_WORDS,
}

METHOD = """\
**Task.** CIFAR-10, re-encoded as JPEG. The encoding costs one or two points against the
original files, so figures of this page compare only with each other. There is no augmentation.
A tenth of the training pictures is the validation set. Settings are chosen on it, with other
seeds, and the curves are measured on it. The test set is read once, at the end of a final run,
with the weights that the workers share: the center, the common model, or the model of the one
process.

**Networks.** A small one: three convolutions of 16, 32 and 64 channels, each followed by ReLU
and 2 x 2 max pooling, and one linear layer (33 834 parameters, no batch norm). A larger one:
torchvision's `ResNet(BasicBlock, [1, 1, 1, 1])` (4.9 million parameters, batch norm). The
ResNet keeps the stem for ImageNet and the full width, because basic blocks have a fixed width.
It is small enough for a few cores, but not suited to pictures of 32 x 32.

**Samples.** All rows of a table train on equally many samples, and each worker has its own
shard. A run has {epochs:g} epochs of the training pictures; crowds and scenarios have a
quarter of that, the ResNet a third. Four workers with batches of 8 take as many steps as one
process with batches of 32.

**Settings.** The learning rate rises over the first {warm_up:.0%} of a run and then falls
linearly to zero. Rows called "defaults" pass only the arguments that the class requires. The
learning rates come from short searches by earlier versions, which were judged on the test set
too, with other seeds. Rows without momentum, or with a momentum of 0.99, keep `lr / (1 -
momentum)` near that of the others. `tuning.py` searches on the validation set with seeds that
this page does not use.

**Processes.** Each worker has one thread. Workers of one simulated node use mapped memory; the
nodes communicate by tcp over loopback. Wall time begins when all workers have met and ends
when the last worker has done its steps. CPU time is that of all workers and the memory node,
divided by the number of cores. The workers share the cores of one machine, so this page says
nothing about scaling, and the staleness depends on the scheduler."""

AGAIN = """\
Repeat the measurement with these commands (`--dry-run` prints the expected duration):

    python benchmarks/convergence/sweep.py --data cifar10.tar.gz
    python benchmarks/convergence/report.py"""


def page(results: Results, wanted: Sequence[Settings], note: str = "") -> str:
    """Return the page as Markdown.

    Args:
        results: that are there.
        wanted: all runs that the report is about.
        note: about the circumstances of the runs.
    """
    epochs = wanted[0].epochs
    parts = [
        "# Convergence: every algorithm on equal samples",
        " ".join([setting(results, wanted), note]).strip(),
        INTERVALS,
        *([PICTURE] if results else []),
        "## Goals",
        "\n".join(f"- {claim.words(results)}" for claim in GOALS),
        "## Accuracy and work",
        SETTINGS,
    ]
    for table in TABLES:
        rows = [row for row in ROWS.values() if row.table == table]
        parts.append(f"### {table}")
        if table == SCENARIOS:
            parts += [scenario_table(results, rows), SCENARIO_WORDS]
        else:
            parts.append(accuracy_table(results, rows))
            parts += [words for name, words in REMARKS.items() if name == table]
    timed = [row for row in ROWS.values() if row.part == 1.0]
    parts += [
        "## Time to accuracy",
        time_table(results, timed),
        TIMES.format(looks=wanted[0].looks, mark=MARK),
        "## Published results",
        findings(results),
        "## Exchanges",
        exchange_table(results),
        COLUMNS,
        "## Staleness",
        staleness_table(results),
        "## Method",
        METHOD.format(epochs=epochs, warm_up=WARM_UP),
        AGAIN,
    ]
    return "\n\n".join(parts) + "\n"


def setting(results: Results, wanted: Sequence[Settings]) -> str:
    """Say for which runs the page stands, and which are missing."""
    seeds = sorted({each.seed for each in wanted})
    found = [each for mine in results.values() for each in mine]
    words = (
        f"**Runs:** {len(found)} of {len(wanted)}, with "
        f"{wanted[0].epochs:g} epochs of {wanted[0].share:.0%} of the training pictures and "
        f"seeds {', '.join(map(str, seeds))}"
    )
    machines = sorted(
        {f"{each['cores']} cores of {each['cpu']}, torch {each['torch']}" for each in found}
    )
    words += f"; {'; '.join(machines)}." if machines else "."
    never, some = [], []
    for name in dict.fromkeys(each.row.name for each in wanted):
        asked = {each.seed for each in wanted if each.row.name == name}
        if not results.get(name):
            never.append(name)
        elif without := sorted(asked - {seed(each) for each in results[name]}):
            some.append(f"{name} ({', '.join(map(str, without))})")
    if never:
        words += f" Rows without a run: {', '.join(never)}."
    if some:
        words += f" Missing seeds by row: {', '.join(some)}."
    return words


def findings(results: Results) -> str:
    """Lay out what papers report beside what was found here."""
    head = ("source", "published", "here, points of accuracy", "reproduced?", "other setting")
    lines = [
        (each.source, each.published, each.figures(results), each.words(results), each.setting)
        for each in FINDINGS
    ]
    return pages.table(head, lines, words=len(head))


def main(words: Sequence[str] | None = None) -> None:
    """Write the page and its picture."""
    docs = pages.DOCS.parent
    parser = command_line.parser(__doc__, seeds=SEEDS, docs=docs)
    sweep.add_more_seeds(parser)
    parser.add_argument("folder", type=Path, nargs="?", default=OUT, help="of the results")
    parser.add_argument("--epochs", type=float, default=EPOCHS)
    parser.add_argument("--share", type=float, default=SHARE)
    parser.add_argument("--looks", type=int, default=LOOKS)
    parser.add_argument("--note", default="", help="what else ran, or the like")
    read = parser.parse_args(words)
    wanted = sweep.wanted(read, list(ROWS))
    results = load(read.folder, wanted)
    ordered = {name: results[name] for name in ROWS if name in results}
    (read.docs / "convergence.md").write_text(page(ordered, wanted, read.note))
    if ordered:
        draw(ordered, read.docs / "convergence.png")


if __name__ == "__main__":
    main()

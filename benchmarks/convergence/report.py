"""Turn the results of ``sweep.py`` into docs/convergence.md and docs/convergence.png.

python benchmarks/convergence/report.py

The page is made of the results that are there, and says which are missing.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))  # where kept.py is

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
± is half of a 95 % confidence interval (Student's t over the seeds; of differences, over the
differences of runs of equal seeds). Rows that decide no goal and no published result have one
run, and no interval. A goal is **met** where the whole interval meets it,
**missed** where none of it does, and **undecided** otherwise. Rows whose goals the first five
seeds left undecided run with five more, declared beforehand; there is no third time."""

SETTINGS = """\
The moving rate is EASGD's share of the distance between worker and center; "default" is
0.45, and 0.9 / workers where read and add are separate.
Momentum is that of the `torch.optim.SGD` inside; "own" is the algorithm's. A row's baseline is
one process with as many samples; of rows without momentum, one process without."""

TIMES = """\
The first of {looks} looks at which the center, or the common model, had {mark:.0%} of 1000
validation pictures right. Seconds are without the looks."""

SCENARIO_WORDS = """\
All runs of this table have a quarter of the samples. The last of 4 workers computes at a
quarter of the others' speed (it sleeps), is killed (SIGKILL) after half of its steps, or joins
when the first is half through; of HybridSGD a node of 2 joins. The others take over its steps,
so that all runs have equally many samples in all. SyncGroup has no row with a joining worker:
its group has a fixed size. Where a run stopped with an error, its accuracy is that of the
model at that moment."""

COLUMNS = """\
Staleness: exchanges of others between two of one worker. Hidden: share of the time of exchanges
that passed behind computation; only algorithms with an update thread, or an averaging inside
backward, can hide any. DDP does not count its bytes; they are those of a ring,
`2 (W - 1) / W` of the model each way. Hogwild moves none: its workers write to one mapped
model."""

CROWD_WORDS = """\
ShmCaffe's moving rate of 0.2 with 16 workers makes `workers x moving_rate` 3.2. With read and
add as separate operations, 1.9 is about the bound in the worst case, when all workers read the
same center before any of them adds; the fused exchange has no bound that depends on the number
of workers ([EASGD](algorithms/easgd.md)). How near the worst case a run comes is a matter of
timing: 16 workers on a few cores mostly take turns, which is kind to SEASGD."""

REMARKS = {
    WORKERS: "All at period 4; the table of periods has 4 workers.",
    CROWDS: CROWD_WORDS,
}

METHOD = """\
Task: CIFAR-10, re-encoded as JPEG, which costs a point or two against the original files, so
compare only figures of this page with each other. No augmentation. A tenth of the training
pictures is the validation set: settings are chosen on it, with other seeds, and the curves are
looks at it. The test set is read once, at the end of a final run, by what the row shares: the
center, the common model, or the one process's model.

Networks: three convolutions of 16, 32 and 64 channels, each with ReLU and 2 x 2 max pooling,
and one linear layer (33 834 parameters, no batch norm); and torchvision's `ResNet(BasicBlock,
[1, 1, 1, 1])` (4.9 million parameters, batch norm). The ResNet has the stem of ImageNet's and
all of torchvision's width, which basic blocks do not let one choose: it is small enough for a
few cores, and not good at pictures of 32 x 32.

Samples: **all rows of a table have equally many samples**, and each worker has a shard of its
own. {epochs:g} epochs of the training pictures; the crowds and scenarios have a quarter of
that, the ResNet a third. Four workers with batches of 8 take as many steps as one process with
batches of 32.

Settings: the learning rate rises over the first {warm_up:.0%} of a run and falls linearly to
zero. Rows called "defaults" give their class nothing but what it demands. Learning rates are
from short searches of earlier versions that were judged on the test set, with other seeds, too;
those of rows without momentum and with a momentum of 0.99 keep `lr / (1 - momentum)` near
those. `tuning.py` searches on the validation set, with seeds that are not among these.

Processes: one thread each; those of one node use mapped memory, nodes speak tcp over loopback.
Wall time is from the moment when all workers have met until the last has done its steps. CPU
time is that of all workers and of the memory node, divided by the machine's cores. Workers
share the cores of one machine, so nothing here says how training scales, and staleness is what
the scheduler makes of it."""

AGAIN = """\
To repeat it (`--dry-run` tells how long it will take):

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
        "## What was exchanged",
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
        f"**These figures stand for** {len(found)} of {len(wanted)} runs: "
        f"{wanted[0].epochs:g} epochs of {wanted[0].share:.0%} of the training pictures, seeds "
        f"{', '.join(map(str, seeds))}"
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
        words += f" Rows not run: {', '.join(never)}."
    if some:
        words += f" Rows without some seeds: {', '.join(some)}."
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

"""What the report decides: goals of this project, and findings of the papers.

Each is a difference of two rows over equal seeds with a bound. It is met only where the whole
confidence interval is on the right side of the bound, missed only where all of it is on the
wrong side, and undecided between.
"""

from __future__ import annotations

from dataclasses import dataclass

from catalog import ROWS, baseline_of
from intervals import Interval, Verdict, paired
from results import Results, by_seed

GOAL_POINTS = 1.5


@dataclass(frozen=True)
class Claim:
    """``behind`` is at most so many points less accurate than ``baseline``.

    A negative number says that ``behind`` is better by as much.

    Attributes:
        behind: name of a row.
        baseline: name of the row that it is compared with.
        at_most: points of accuracy.
    """

    behind: str
    baseline: str
    at_most: float

    def difference(self, results: Results) -> Interval | None:
        """Return by how many points the row is behind; None without runs of equal seeds."""
        return paired(
            by_seed(results.get(self.baseline, [])), by_seed(results.get(self.behind, []))
        )

    def verdict(self, results: Results) -> Verdict:
        """Tell whether the interval decides it."""
        difference = self.difference(results)
        return "no runs" if difference is None else difference.is_at_most(self.at_most)

    def words(self, results: Results) -> str:
        """Word the claim, the interval and the verdict."""
        difference = self.difference(results)
        told = "" if difference is None else f"{difference.signed} points behind; "
        return (
            f"{ROWS[self.behind].title}, behind {ROWS[self.baseline].title} by at most "
            f"{self.at_most:g}: {told}**{self.verdict(results)}**"
        )


GOALS = (
    Claim("sync", "one", GOAL_POINTS),
    Claim("sync", "ddp", GOAL_POINTS),
    Claim("easgd", "one", GOAL_POINTS),
    Claim("easgd-overlap", "easgd", GOAL_POINTS),
    Claim("hybrid", "one", GOAL_POINTS),
    Claim("hybrid-overlap", "hybrid", GOAL_POINTS),
    Claim("resnet-sync", "resnet-one", GOAL_POINTS),
    Claim("resnet-easgd", "resnet-one", GOAL_POINTS),
    Claim("resnet-hybrid", "resnet-one", GOAL_POINTS),
    Claim("easgd", "easgd-4", 0.0),
    Claim("hybrid", "hybrid-10", 0.0),
    Claim("resnet-easgd", "resnet-easgd-4", 0.0),
    Claim("resnet-hybrid", "resnet-hybrid-10", 0.0),
    Claim("easgd-slow", "easgd-undisturbed", GOAL_POINTS),
    Claim("easgd-killed", "easgd-undisturbed", GOAL_POINTS),
    Claim("easgd-joining", "easgd-undisturbed", GOAL_POINTS),
)


@dataclass(frozen=True)
class Finding:
    """Something that a paper reports, and how this comparison would show it.

    Attributes:
        source: of the finding. published: what it reports, with figures where it gives any.
        claims: all of them met: reproduced; one missed: not reproduced. None: not measured
        here. setting: how this comparison differs.
    """

    source: str
    published: str
    claims: tuple[Claim, ...]
    setting: str

    def words(self, results: Results) -> str:
        """Say whether the finding is reproduced."""
        if not self.claims:
            return "not measured"
        verdicts = [claim.verdict(results) for claim in self.claims]
        if "missed" in verdicts:
            return "**not reproduced**"
        if all(verdict == "met" for verdict in verdicts):
            return "reproduced"
        return "no runs" if set(verdicts) == {"no runs"} else "undecided"

    def figures(self, results: Results) -> str:
        """Word the differences that were measured."""
        told = []
        for claim in self.claims:
            difference = claim.difference(results)
            if difference is not None:
                pair = f"{ROWS[claim.behind].title} behind {ROWS[claim.baseline].title}"
                told.append(f"{pair}: {difference.signed}")
        return "; ".join(told)


EASGD_PAPER = "EASGD (arXiv:1412.6651)"
SHMCAFFE = "ShmCaffe (ICDCS 2018)"
SMALL = "33 834 parameters and 6 epochs for a 7-layer network to its best error"

FINDINGS = (
    Finding(
        EASGD_PAPER,
        "EAMSGD has the lowest error at every period; the errors are in figures only",
        tuple(
            Claim(f"eamsgd-{period}", f"easgd-plain-{period}", 0.0) for period in (1, 4, 16, 64)
        ),
        f"{SMALL}; momentum 0.9 for 0.99; batches of 8 for 128",
    ),
    Finding(
        EASGD_PAPER,
        "Downpour is good at periods 1 and 4 and unstable at 16 and 64",
        (
            Claim("downpour-plain-4", "downpour-plain-1", GOAL_POINTS),
            Claim("downpour-plain-1", "downpour-plain-16", -5.0),
            Claim("downpour-plain-1", "downpour-plain-64", -5.0),
        ),
        f"{SMALL}; one learning rate for all periods",
    ),
    Finding(
        EASGD_PAPER,
        "more workers reach a lower test error",
        (
            Claim("easgd-plain-4-of-8", "easgd-plain-4", 0.0),
            Claim("easgd-plain-4", "easgd-plain-4-of-2", 0.0),
        ),
        "equal samples in all for equal samples per worker, which favours few workers here",
    ),
    Finding(
        SHMCAFFE,
        "16 workers with moving rate 0.2 lose 5.7 points to one (79.2 % top-5)",
        (Claim("one-few", "seasgd-crowd", -5.7),),
        "CIFAR-10 for ImageNet; processes on a few cores take turns, which is kind to SEASGD",
    ),
    Finding(
        SHMCAFFE,
        "groups of 4 recover most of that: 83.5 %, 1.4 points behind one",
        (
            Claim("hybrid-crowd", "one-few", 1.4),
            Claim("hybrid-crowd", "seasgd-crowd", -4.3),
        ),
        "CIFAR-10 for ImageNet; the fused exchange for ShmCaffe's three steps between groups",
    ),
    Finding(
        SHMCAFFE,
        "4 workers in groups of 2 are 0.9 points behind one (84.0 %)",
        (Claim("hybrid", "one", 0.9),),
        "CIFAR-10 for ImageNet",
    ),
    Finding(
        SHMCAFFE,
        "11.5 times the speed of one GPU with 16, and 10.1 times with groups",
        (),
        "all workers share one machine's cores here, so no speed-up can be measured",
    ),
    Finding(
        "HogWild++ (ICDM 2016)",
        "near-linear speed-up over the sockets of a machine",
        (),
        "a machine with several sockets is needed",
    ),
    Finding(
        "DistBelief (NIPS 2012)",
        "more than 12 times the speed with 81 machines and Adagrad at the server",
        (),
        "a cluster is needed; ServerDownpour's accuracy is in the table of classes",
    ),
)

CITED = frozenset({"easgd-16", "easgd-64", "downpour", "ssp"})
"""Names of rows that decide no goal and no finding, but support docs/algorithms/README.md."""

CLAIMED = CITED | frozenset(
    name
    for claim in (*GOALS, *(claim for finding in FINDINGS for claim in finding.claims))
    for name in (claim.behind, claim.baseline, baseline_of(ROWS[claim.behind]))
)
"""Names of the rows that carry a claim, and their baselines: they run with all seeds."""

UNDECIDED = frozenset(
    {
        "easgd",
        "easgd-overlap",
        "easgd-undisturbed",
        "easgd-slow",
        "resnet-one",
        "resnet-sync",
        "resnet-easgd",
        "resnet-hybrid",
    }
)
"""Names of the rows, and of their baselines, whose goals the first seeds left undecided: they
run once more, with as many other seeds."""

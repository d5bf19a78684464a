"""Step commits, recoveries and reads; see the package's docstring."""

from __future__ import annotations

import argparse
import random
import sys
import time

from smbox.testing.stepping import small_memory
from smbox.testing.stepping.cases import CASES, LOCK_FREE
from smbox.testing.stepping.commits import levels, step_commits, step_lock_free
from smbox.testing.stepping.readers import READS, step_reads
from smbox.testing.stepping.tracee import why_impossible

SAMPLE, READS_SAMPLE = 0.06, 0.015
"""Sampled shares of the memories, and of a read's instructions. A sampled case has 1 level."""

UNAVAILABLE = 77
"""Exit status if the machine cannot step: that of a skipped test of Automake."""


def main() -> None:
    """Run every case; the first difference ends the program with exit status 1."""
    parser = argparse.ArgumentParser(prog="python -m smbox.testing.stepping")
    parser.add_argument("--sample", action="store_true", help="run a random part, in seconds")
    parser.add_argument("--seed", type=int, help="seed of the random part; default: random")
    parser.add_argument("--only", default="", help="cases whose name contains this")
    given = parser.parse_args()
    why_not = why_impossible()
    if why_not is not None:
        print(why_not)
        sys.exit(UNAVAILABLE)
    small_memory.shrink()
    seed = random.randrange(1 << 32) if given.seed is None else given.seed
    rng = random.Random(seed)
    share, reads_share = (SAMPLE, READS_SAMPLE) if given.sample else (1.0, 1.0)
    print(f"seed {seed}")
    for case in CASES:
        if given.only in case.name:
            for level in [rng.choice(levels())] if given.sample else levels():
                started_s = time.monotonic()
                count = step_commits(case, level, share, rng)
                _report(f"{case.name}, level {level}", count, started_s)
    if given.only in LOCK_FREE.name:
        started_s = time.monotonic()
        _report(LOCK_FREE.name, step_lock_free(LOCK_FREE), started_s)
    for read in READS:
        if given.only in read.name:
            started_s = time.monotonic()
            _report(read.name, step_reads(read, reads_share, rng), started_s)


def _report(name: str, count: dict[str, int], started_s: float) -> None:
    done = ", ".join(f"{value} {what}" for what, value in count.items())
    print(f"{name}: {done} in {time.monotonic() - started_s:.1f} s", flush=True)


if __name__ == "__main__":
    main()

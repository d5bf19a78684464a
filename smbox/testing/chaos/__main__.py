"""The command ``python -m smbox.testing.chaos``."""

from __future__ import annotations

import argparse
import sys
from functools import partial

from smbox.testing.chaos.harness import Settings, run


def main() -> int:
    """Run chaos for so many minutes and print the result; progress goes to stderr."""
    parser = argparse.ArgumentParser(
        prog="python -m smbox.testing.chaos",
        description="Kill and pause clients, nodes and connections while clients change"
        " regions; check that every acknowledged change is there exactly once.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--minutes", type=float, default=1.0, help="shortest duration")
    parser.add_argument("--seed", type=int, default=2026, help="seed of the choices")
    args = parser.parse_args()
    report = partial(print, file=sys.stderr, flush=True)
    verdict = run(Settings.of_minutes(args.seed, args.minutes), report)
    print(verdict.text())
    return 1 if verdict.faults else 0


if __name__ == "__main__":
    sys.exit(main())

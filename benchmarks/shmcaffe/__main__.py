"""``python benchmarks/shmcaffe``: the folder runs as a program."""

from __future__ import annotations

import sys
from pathlib import Path

# Python has put this folder on the path; the package is found in the one above, and task,
# worker and cluster in the folder of the convergence runs.
BENCHMARKS = Path(__file__).resolve().parents[1]
sys.path[:1] = [str(BENCHMARKS), str(BENCHMARKS / "convergence")]

from shmcaffe.cli import main  # noqa: E402 - only now it can be found

if __name__ == "__main__":
    sys.exit(main())

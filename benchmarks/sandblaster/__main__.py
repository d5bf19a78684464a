"""``python benchmarks/sandblaster``: the folder runs as a program."""

from __future__ import annotations

import sys
from pathlib import Path

# Python has put this folder on the path; the package is found in the one above.
sys.path[0] = str(Path(__file__).resolve().parents[1])

from sandblaster.cli import main  # noqa: E402 - only now it can be found

if __name__ == "__main__":
    sys.exit(main())

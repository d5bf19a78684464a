"""``python -m memnode``: the command ``memnode``."""

from __future__ import annotations

import sys

from memnode.cli import main

if __name__ == "__main__":
    sys.exit(main())

"""``python -m memnode``: the command ``memnode``."""

from memnode.cli import main

if __name__ == "__main__":
    raise SystemExit(main())

"""``python -m smbox``: the command ``smbox``."""

from smbox.cli.main import main

if __name__ == "__main__":
    main()

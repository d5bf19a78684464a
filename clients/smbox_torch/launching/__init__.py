"""The command ``smbox run``: memory nodes and workers, started, watched and ended."""

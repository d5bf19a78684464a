"""The command ``smbox run``: starts, watches and ends memory nodes and workers."""

"""The memory of a node: segments, locks, journal slots and the one commit procedure."""

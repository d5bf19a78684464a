"""The workers of a run: membership, progress and reports."""

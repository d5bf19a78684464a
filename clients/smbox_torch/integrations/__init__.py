"""Adapters for training frameworks, one file each; an adapter's import needs its framework."""

"""Adapters for training frameworks, one file each; importing one needs its framework."""

"""Synchronous SGD: every step is taken with the mean gradient of all workers."""

"""Sandblaster L-BFGS: a coordinator, its workers, and vectors that stay at the memory node."""

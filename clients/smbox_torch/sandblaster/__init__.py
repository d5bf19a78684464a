"""Sandblaster L-BFGS: a coordinator, its workers, and vectors that stay in the memory."""

"""Prepares the server of preloaded.py: its forks change few pages, each of which they copy."""

import gc
import weakref


def prepare() -> None:
    """Keep garbage collections and exits of forks from what is imported so far."""
    gc.collect()
    gc.freeze()  # a collection would change all objects
    for finalizer in weakref.finalize._registry:  # of torch's libraries: they change 8000 pages
        finalizer.atexit = False

"""Arithmetic of numpy's without its warnings: compiled kernels do not warn either."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import Context, ContextVar
from typing import Any, Final, TypeVar

import numpy as np

T = TypeVar("T")


def _quiet_state() -> tuple[ContextVar[Any], Any] | None:
    """Return where numpy keeps how it treats such errors, and what it keeps to ignore them.

    None: it keeps that somewhere else, as it did before 2.0.
    """
    context = Context()
    with np.errstate():  # what is kept somewhere else is put back
        context.run(np.seterr, all="ignore")
    found = list(context.items())
    return found[0] if len(found) == 1 else None


_STATE: Final = _quiet_state()


def quietly(call: Callable[..., T], *args: object) -> T:
    """Return ``call(*args)``, with no warning of what overflows or is not a number.

    It is ``np.errstate(all="ignore")``, which works out each time, and so for each stripe,
    what to keep.
    """
    if _STATE is None:
        with np.errstate(all="ignore"):
            return call(*args)
    variable, quiet = _STATE
    before = variable.set(quiet)
    try:
        return call(*args)
    finally:
        variable.reset(before)

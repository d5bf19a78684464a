"""Arithmetic of numpy's without its warnings: compiled kernels do not warn either."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import Context
from typing import Final, TypeVar

import numpy as np

T = TypeVar("T")


def _quiet_context() -> Context | None:
    """Return a context in which numpy is quiet; None: this one (before 2.0) asks the thread."""
    if int(np.__version__.partition(".")[0]) < 2:
        return None
    context = Context()
    context.run(np.seterr, all="ignore")
    return context


_CONTEXT: Final = _quiet_context()


def quietly(call: Callable[..., T], *args: object) -> T:
    """Return ``call(*args)``, with no warning of what overflows or is not a number.

    Does what ``np.errstate`` does in a tenth of its time, which each stripe takes. A ``call``
    that is compiled is one step to signal handlers here, too.
    """
    if _CONTEXT is None:
        with np.errstate(all="ignore"):
            return call(*args)
    return _CONTEXT.copy().run(call, *args)

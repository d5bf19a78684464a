"""A worker's computation: real, or replaced by waiting for a time that was measured before.

Waiting lets six workers share two cores, as if each had cores of its own. Only computation is
replaced: what an algorithm does with gradients, and every byte it sends, stays real. ``lab
run --wait-s`` asks for it, and the table of the run says so.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Final

WAIT_S: Final = "SMBOX_LAB_WAIT_S"
"""Variable with the seconds to wait instead of each computation."""


class Computing:
    """Computes, or waits for as long as it takes.

    Args:
        compute: forward and backward pass of one batch; leaves gradients.
        wait_s: seconds to wait instead; None: compute.
    """

    def __init__(self, compute: Callable[[], None], wait_s: float | None) -> None:
        self._compute = compute
        self._wait_s = wait_s
        if wait_s is not None:
            compute()  # the gradients that stay

    @classmethod
    def from_env(cls, compute: Callable[[], None], env: Mapping[str, str]) -> Computing:
        """Do as ``lab run`` has said."""
        text = env.get(WAIT_S)
        return cls(compute, None if text is None else float(text))

    def run(self) -> None:
        """Compute one batch, or wait."""
        if self._wait_s is None:
            self._compute()
        else:
            time.sleep(self._wait_s)

"""How a stage left the pipeline, and the mark in a counter that reports it. Pure.

A stage waits for counters of messages. A stage that exits adds a mark to the counters that its
neighbours wait for. The neighbours wake up at once and read from the mark who exited, and how:

    bits  0-39   number of messages
    bits 40-49   number of the stage
    bits 50-51   how it exited, as 1 + the index in EXIT_KINDS; 0: it has not exited
"""

from __future__ import annotations

from typing import Final, Literal, NamedTuple, get_args

from smbox.errors import WorkerLostError
from smbox.roster import CAPACITY

__all__ = ["ExitKind", "StageExit", "message_count"]

COUNT_BITS: Final = 40
STAGE_BITS: Final = 10
assert 1 << STAGE_BITS >= CAPACITY

ExitKind = Literal["left", "failed", "died"]
EXIT_KINDS: Final[tuple[ExitKind, ...]] = get_args(ExitKind)


def message_count(value: int) -> int:
    """Return the number of messages in a counter's value, without the mark."""
    return value & (1 << COUNT_BITS) - 1


class StageExit(NamedTuple):
    """The exit of one stage.

    Attributes:
        stage: number of the stage.
        how: "left": it closed the pipeline; "failed": it raised an error; "died": its process
            was killed or stopped.
    """

    stage: int
    how: ExitKind

    @property
    def mark(self) -> int:
        """The number to add to a counter, once."""
        return ((1 + EXIT_KINDS.index(self.how)) << STAGE_BITS | self.stage) << COUNT_BITS

    @classmethod
    def decode(cls, value: int) -> StageExit | None:
        """Return the exit marked in a counter's value, or None."""
        how, stage = divmod(value >> COUNT_BITS, 1 << STAGE_BITS)
        return cls(stage, EXIT_KINDS[how - 1]) if how else None

    @classmethod
    def from_error(cls, error: BaseException, stage: int) -> StageExit:
        """Return the exit that caused an error at a stage: another stage's, or its own."""
        if isinstance(error, WorkerLostError):
            lost, how = error.facts.get("stage"), error.facts.get("how")
            if isinstance(lost, int) and how in EXIT_KINDS:
                return cls(lost, EXIT_KINDS[EXIT_KINDS.index(how)])
        return cls(stage, "failed")

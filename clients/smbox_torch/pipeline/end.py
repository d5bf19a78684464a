"""How a stage of a pipeline ended, and the mark that tells it to the stages that wait. Pure.

A stage waits for counters of messages. One that ends adds a mark to the counters that its
neighbours wait for, so they wake up at once, and know by the mark who ended, and how:

    bits  0-39   messages
    bits 40-49   number of the stage
    bits 50-51   how it ended, as 1 + the index in HOW; 0: it did not
"""

from __future__ import annotations

from typing import Final, Literal, NamedTuple, get_args

from smbox.errors import WorkerLostError
from smbox.roster import CAPACITY

__all__ = ["End", "How", "messages_of"]

COUNT_BITS: Final = 40
STAGE_BITS: Final = 10
assert 1 << STAGE_BITS >= CAPACITY

How = Literal["left", "failed", "died"]
HOW: Final[tuple[How, ...]] = get_args(How)


def messages_of(value: int) -> int:
    """Return how many messages a counter counts, whatever mark it has."""
    return value & (1 << COUNT_BITS) - 1


class End(NamedTuple):
    """The end of one stage.

    Attributes:
        stage: its number.
        how: it closed the pipeline, an error ended it, or it was killed or stopped.
    """

    stage: int
    how: How

    @property
    def mark(self) -> int:
        """What is added to a counter, once."""
        return ((1 + HOW.index(self.how)) << STAGE_BITS | self.stage) << COUNT_BITS

    @classmethod
    def of(cls, value: int) -> End | None:
        """Return the end that a counter's value tells; None: that stage has not ended."""
        how, stage = divmod(value >> COUNT_BITS, 1 << STAGE_BITS)
        return cls(stage, HOW[how - 1]) if how else None

    @classmethod
    def behind(cls, error: BaseException, stage: int) -> End:
        """Return the end that an error at a stage comes from: another stage's, or its own."""
        if isinstance(error, WorkerLostError):
            lost, how = error.facts.get("stage"), error.facts.get("how")
            if isinstance(lost, int) and how in HOW:
                return cls(lost, HOW[HOW.index(how)])
        return cls(stage, "failed")

"""PartialPush: after an error in a push, what the center lacks of the pushed arrays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from smbox import Handle
from smbox.errors import RequestTimeoutError
from smbox_torch.boxes import Array

__all__ = ["PartialPush"]


class PartialPush:
    """Pushes arrays one after another; after an error the arrays hold what was not pushed."""

    def __init__(self) -> None:
        self._in_doubt: tuple[int, Handle[Any]] | None = None
        """The array whose push timed out, and its handle, which tells what the center has."""

    def push(
        self, values: Sequence[Array], sent: Sequence[Array], send: Callable[[int, Array], Any]
    ) -> None:
        """Call ``send(at, sent[at])`` for each array; raises what ``send`` raises.

        After an error or interrupt, the arrays that were pushed are 0, and the others hold
        their operands. The array whose push timed out is in doubt until :meth:`settle`.

        Args:
            values: the arrays to push, ``[P]`` each.
            sent: their operands, see ``Center.operands``.
            send: pushes one operand.
        """
        at = 0
        try:
            for at, operand in enumerate(sent):
                send(at, operand)
        except BaseException as error:
            for pushed in values[:at]:
                pushed[...] = 0
            # What a narrow operand lacks is in the sender's residual already.
            for unsent, operand in zip(values[at:], sent[at:], strict=True):
                unsent[...] = operand
            handle = getattr(error, "handle", None)
            if isinstance(handle, Handle):
                self._in_doubt = at, handle
            raise

    def settle(self, values: Sequence[Array]) -> None:
        """Set to 0 what the center has of the array whose push timed out, if there is one.

        Args:
            values: those of the push, unchanged since then.

        Raises:
            RequestTimeoutError: the node still does not say what it has applied. Nothing
                changed; call again.
        """
        if self._in_doubt is None:
            return
        at, handle = self._in_doubt
        outcome = handle.outcome()
        if outcome == "unknown":
            raise RequestTimeoutError(
                "the node does not say whether it has the update of an earlier step, whose push"
                " timed out: call again, or continue from a checkpoint"
            )
        unsent = values[at]
        done = [(0, unsent.nbytes)] if outcome == "all" else handle.ranges_done()
        for first, limit in done:
            unsent[first // unsent.itemsize : limit // unsent.itemsize] = 0
        self._in_doubt = None

    def forget(self) -> None:
        """Forget the push that timed out, because the arrays were replaced."""
        self._in_doubt = None

"""Scripted faults: a transport that drops, duplicates, delays or cuts given messages.

    script = FaultScript().drop(Op.PUT, nth=2).cut(Op.FETCH, side="reply")
    remote = open_over(script.around(open_transport), ...)
    ...
    assert script.is_over()

Nothing is random, and nothing waits: a fault strikes the n-th message of an op.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, Self, TypeAlias

from smbox.client.connection import OpenTransport, Transport
from smbox.wire import header
from smbox.wire.header import Buffer
from smbox.wire.ops import Op

Side: TypeAlias = Literal["request", "reply"]
Fate: TypeAlias = Literal["drop", "duplicate", "delay", "cut"]


@dataclass(slots=True)
class Fault:
    """A fault of the ``nth`` message of ``op`` (None: of any op) on one side.

    Attributes:
        behind: number of later messages of that side that overtake a delayed one.
        seen: matching messages so far, over all connections.
    """

    fate: Fate
    op: Op | None
    nth: int
    side: Side
    behind: int = 0
    seen: int = 0

    def strikes(self, side: Side, op: int) -> bool:
        """Count the message if it matches; return whether the fault strikes it."""
        if side != self.side or self.op not in (None, op):
            return False
        self.seen += 1
        return self.seen == self.nth

    @property
    def is_over(self) -> bool:
        """Whether the fault has struck."""
        return self.seen >= self.nth


@dataclass(slots=True)
class FaultScript:
    """A list of faults that strike once each; its methods add a fault and can be chained."""

    faults: list[Fault] = field(default_factory=list)

    def drop(self, op: Op | None = None, *, nth: int = 1, side: Side = "request") -> Self:
        """Lose the message; the connection stays open."""
        return self._with(Fault("drop", op, nth, side))

    def duplicate(self, op: Op | None = None, *, nth: int = 1, side: Side = "request") -> Self:
        """Deliver the message twice."""
        return self._with(Fault("duplicate", op, nth, side))

    def delay(
        self, op: Op | None = None, *, nth: int = 1, side: Side = "request", behind: int = 1
    ) -> Self:
        """Deliver the message after ``behind`` later ones; if fewer follow, never."""
        return self._with(Fault("delay", op, nth, side, behind))

    def cut(self, op: Op | None = None, *, nth: int = 1, side: Side = "request") -> Self:
        """Lose the message and all later ones of its connection; a new connection works."""
        return self._with(Fault("cut", op, nth, side))

    def _with(self, fault: Fault) -> Self:
        self.faults.append(fault)
        return self

    def around(self, open_transport: OpenTransport) -> OpenTransport:
        """Return a function that opens connections with these faults."""
        return lambda: FaultyTransport(open_transport(), self)

    def judge(self, side: Side, op: int) -> Fault | None:
        """Return the fault that strikes this message; every fault counts it."""
        struck = [fault for fault in self.faults if fault.strikes(side, op)]
        return struck[0] if struck else None

    def is_over(self) -> bool:
        """Return whether every fault has struck."""
        return all(fault.is_over for fault in self.faults)


@dataclass(slots=True)
class _Held:
    behind: int
    frames: list[Buffer]


class FaultyTransport:
    """A transport whose messages suffer the faults of a script.

    Args:
        inner: the transport of all other messages; closed with this one.
        script: shared with other connections of the same script.
    """

    def __init__(self, inner: Transport, script: FaultScript) -> None:
        self._inner = inner
        self._script = script
        self._is_cut = False
        self._held: dict[Side, list[_Held]] = {"request": [], "reply": []}
        self._arrived: deque[list[Buffer]] = deque()

    def send(self, frames: Sequence[Buffer]) -> bool:
        """Send the message, unless a fault strikes it."""
        out = self._suffer("request", frames)
        return all(self._inner.send(message) for message in out)

    def receive(self, timeout_s: float) -> list[Buffer] | None:
        """Return the next message; None if a fault struck it."""
        if not self._arrived and not self._is_cut:
            frames = self._inner.receive(timeout_s)
            if frames is not None:
                self._arrived.extend(self._suffer("reply", frames))
        return self._arrived.popleft() if self._arrived else None

    def _suffer(self, side: Side, frames: Sequence[Buffer]) -> list[list[Buffer]]:
        """Return the messages to deliver now, in order."""
        fault = self._script.judge(side, header.unpack(frames[0])[2])
        fate = fault.fate if fault is not None else None
        self._is_cut = self._is_cut or fate == "cut"
        if self._is_cut or fate == "drop":
            return []
        if fault is not None and fate == "delay":
            # Lent memory may change while a message is held: keep a copy.
            self._held[side].append(_Held(fault.behind, [bytes(frame) for frame in frames]))
            return []
        return [list(frames)] * (2 if fate == "duplicate" else 1) + self._released(side)

    def _released(self, side: Side) -> list[list[Buffer]]:
        for held in self._held[side]:
            held.behind -= 1
        out = [held.frames for held in self._held[side] if held.behind <= 0]
        self._held[side] = [held for held in self._held[side] if held.behind > 0]
        return out

    def close(self) -> None:
        """Close the inner connection."""
        self._inner.close()

    def is_released(self) -> bool:
        """Ask the inner connection."""
        return self._inner.is_released()

"""Whether the sums are right: the region's contents against what the clients logged. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from smbox.testing.chaos import plan
from smbox.testing.chaos.log import LifeLog
from smbox.testing.chaos.plan import I64


@dataclass(slots=True)
class Verdict:
    """What a run of chaos came to.

    Attributes:
        seed: of the schedule.
        operations: acknowledged changes.
        fates: how often what was done to whom.
        seconds: that it took.
        faults: what must not be; none in a good run.
    """

    seed: int
    operations: int = 0
    fates: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0
    faults: list[str] = field(default_factory=list)

    @property
    def kills(self) -> int:
        """How often something was killed or cut; pauses do not count."""
        return sum(count for fate, count in self.fates.items() if "pause" not in fate)

    def text(self) -> str:
        """Word the result for people."""
        done = ", ".join(f"{count} x {fate}" for fate, count in sorted(self.fates.items()))
        size = f"{self.operations} acknowledged operations in {self.seconds:.1f} s"
        lines = [
            f"chaos, seed {self.seed}: {size}",
            f"  {self.kills} kills and cuts: {done or 'none'}",
        ]
        if not self.faults:
            lines.append("  every acknowledged operation is in exactly once; nothing is left")
        lines += [f"  FAULT: {fault}" for fault in self.faults]
        return "\n".join(lines)


def judge(contents: I64, logs: Mapping[int, LifeLog]) -> list[str]:
    """Compare the region, ``i64[plan.COUNT]``, with the logs by identity; list the faults."""
    faults = []
    for block in range(2 * plan.STRIPES):
        cells = contents[plan.block_cells(block)]
        fault = plan.block_fault(cells)
        faults += [f"block {block}: {fault}"] if fault else []
        for who in range(plan.CLIENTS * plan.LIVES):
            log = logs.get(who, LifeLog())
            fault = _own_fault(int(cells[1 + who]), block, log)
            faults += [f"block {block}, life {_shown(who)}: {fault}"] if fault else []
    for who, log in logs.items():
        for stripe in range(plan.STRIPES):
            fault = _row_fault(contents[plan.row_cells(stripe, who)], stripe, log)
            faults += [f"row in stripe {stripe}, life {_shown(who)}: {fault}"] if fault else []
    return faults


def _shown(who: int) -> str:
    client, life = divmod(who, plan.LIVES)
    return f"{life} of client {client}"


def _own_fault(value: int, block: int, log: LifeLog) -> str | None:
    windows = {window for window in range(plan.WHOLE + 1) if block in plan.blocks(window)}
    sure = [plan.amount(each.number) for each in log.acknowledged if each.place in windows]
    maybe = [plan.amount(each.number) for each in log.open if each.place in windows]
    rest = value - sum(sure)
    if rest in plan.subset_sums(maybe):
        return None
    return (
        f"{_amounts(value)} are in, {_amounts(sum(sure))} were acknowledged;"
        f" besides, only {[each.number for each in log.open]} may be"
    )


def _amounts(total: int) -> str:
    count, numbers = divmod(total, plan.UNIT)
    return f"{count} changes (numbers add up to {numbers})"


def _row_fault(row: I64, stripe: int, log: LifeLog) -> str | None:
    place = plan.PUTS + stripe
    last = max((each.number for each in log.acknowledged if each.place == place), default=0)
    allowed = [last, *(each.number for each in log.open if each.place == place)]
    if (row == row[0]).all() and int(row[0]) in allowed:
        return None
    return f"it holds {row.tolist()}, not one of {allowed}"

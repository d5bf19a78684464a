"""The check of the sums: the contents of the region against the logs of the clients. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from smbox.testing.chaos import plan
from smbox.testing.chaos.log import Change, LifeLog
from smbox.testing.chaos.plan import I64


@dataclass(slots=True)
class Verdict:
    """What a run of chaos came to.

    Attributes:
        seed: of the schedule.
        operations: acknowledged changes.
        kills_inside: how many kills met a process inside a native commit.
        pauses_inside: the same of pauses.
        fates: how often what was done to whom.
        seconds: that it took.
        faults: what must not be; none in a good run.
    """

    seed: int
    operations: int = 0
    kills_inside: int = 0
    pauses_inside: int = 0
    fates: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0
    faults: list[str] = field(default_factory=list)

    @property
    def strikes(self) -> int:
        """How often something was killed, cut or paused."""
        return sum(self.fates.values())

    @property
    def kills(self) -> int:
        """How often something was killed or cut; pauses do not count."""
        return sum(count for fate, count in self.fates.items() if "pause" not in fate)

    def text(self) -> str:
        """Word the result for people: one line, and one for each fault."""
        done = ", ".join(f"{count} x {fate}" for fate, count in sorted((+self.fates).items()))
        result = "every acknowledged operation is in exactly once; nothing is left"
        line = (
            f"chaos, seed {self.seed}, {self.seconds / 60:.1f} minutes:"
            f" {self.operations} acknowledged operations, {self.strikes} strikes ({done}),"
            f" inside a native commit {self.kills_inside} kills and {self.pauses_inside}"
            f" pauses: {result if not self.faults else 'FAILED'}"
        )
        return "\n".join([line, *(f"  FAULT: {fault}" for fault in self.faults)])


def judge(contents: I64, counts: Sequence[int], logs: Mapping[int, LifeLog]) -> list[str]:
    """Compare the region with the logs; list the faults.

    Args:
        contents: ``i64[plan.COUNT]``.
        counts: finished commits of each stripe.
        logs: by identity.
    """
    faults = []
    for block in range(2 * plan.STRIPES):
        fault = plan.block_fault(contents[plan.block_cells(block)])
        faults += [f"block {block}: {fault}"] if fault else []
    for stripe in range(plan.STRIPES):
        faults += _stripe_faults(contents, counts[stripe], stripe, logs)
    for who, log in logs.items():
        for stripe in range(plan.STRIPES):
            fault = _row_fault(contents[plan.row_cells(stripe, who)], stripe, log)
            faults += [f"row in stripe {stripe}, life {_shown(who)}: {fault}"] if fault else []
    return faults


def _shown(who: int) -> str:
    client, life = divmod(who, plan.LIVES)
    return f"{life} of client {client}"


def _stripe_faults(
    contents: I64, count: int, stripe: int, logs: Mapping[int, LifeLog]
) -> list[str]:
    """Look at both ends of a stripe, which one commit changes together, and at its count."""
    faults = []
    commits = maybe = 0
    head, tail = (contents[plan.block_cells(2 * stripe + end)] for end in (0, 1))
    for who in range(plan.CLIENTS * plan.LIVES):
        log = logs.get(who, LifeLog())
        acknowledged = [each for each in log.acknowledged if plan.touches(each.place, stripe)]
        sums = _sums(log.open, stripe)
        shares = [_share(each, stripe) for each in acknowledged]
        rest = (
            int(head[1 + who]) - sum(share[0] for share in shares),
            int(tail[1 + who]) - sum(share[1] for share in shares),
        )
        if rest not in sums:
            opened = [each.number for each in log.open]
            missing = [_amounts(each) for each in rest]
            faults.append(
                f"stripe {stripe}, life {_shown(who)}: besides what was acknowledged, {missing}"
                f" are in its two blocks, and only any of {opened} may be, in both at once"
            )
        commits += len(acknowledged) + sums.get(rest, 0)
        maybe += sum(each.place == plan.PUTS + stripe for each in log.open)
    if not commits <= count <= commits + maybe:
        faults.append(
            f"stripe {stripe} counts {count} commits; {commits} are in it, and at most"
            f" {maybe} puts more"
        )
    return faults


def _share(change: Change, stripe: int) -> tuple[int, int]:
    """Return what a change adds in the head and in the tail of a stripe."""
    added = plan.amount(change.number)
    found = plan.blocks(change.place) if change.place <= plan.WHOLE else []
    return added * (2 * stripe in found), added * (2 * stripe + 1 in found)


def _sums(changes: Iterable[Change], stripe: int) -> dict[tuple[int, int], int]:
    """Return what any of the changes may come to in a stripe, and how many of them it takes."""
    found = {(0, 0): 0}
    for change in changes:
        head, tail = _share(change, stripe)
        if head or tail:
            more = {(x + head, y + tail): taken + 1 for (x, y), taken in found.items()}
            found |= more
    return found


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

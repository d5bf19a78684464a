"""The hierarchy of a run: its groups, their leaders, and the placement on nodes."""

from __future__ import annotations

import io
from dataclasses import dataclass

from rich import box as boxes
from rich.console import Console
from rich.table import Table

from smbox_torch.topology.links import Link, Links

__all__ = ["Cut", "Group", "Topology"]

WIDTH = 110


@dataclass(frozen=True, slots=True)
class Group:
    """Workers that step together with the mean of their gradients.

    Args:
        ranks: ranks of its workers; the first is the root, which exchanges with the center.
        node: id of the memory node that holds its sums; None: the memory of its only host.
    """

    ranks: tuple[int, ...]
    node: int | None

    @property
    def root(self) -> int:
        """Rank of the worker that exchanges with the center."""
        return self.ranks[0]


@dataclass(frozen=True, slots=True)
class Cut:
    """One division of the workers into groups, and its predicted cost.

    Args:
        groups: the groups.
        center: id of the memory node that holds the center.
        mean_s: seconds of the slowest group's mean, in every step.
        exchange_s: seconds of the slowest group's exchange and move, every ``period`` steps.
        step_s: seconds of communication in a step of the slowest group.
    """

    groups: tuple[Group, ...]
    center: int
    mean_s: float
    exchange_s: float
    step_s: float


@dataclass(frozen=True, slots=True)
class Topology:
    """The chosen hierarchy, and the links from which it was derived.

    ``str()`` shows the links, the groups, and the cost of single hosts and of one group.

    Args:
        links: the measured links.
        chosen: the division that is used.
        cuts: divisions with predictions: single hosts, the cut at the largest gap, one group.
        gap: ratio of the next slower link to the slowest link inside the groups; 1: no gap.
        nbytes: bytes of the model in one direction of an exchange.
        period: steps between two exchanges with the center.
        reason: the reason for the choice, as text.
    """

    links: Links
    chosen: Cut
    cuts: tuple[Cut, ...]
    gap: float
    nbytes: int
    period: int
    reason: str

    @property
    def groups(self) -> tuple[Group, ...]:
        """The groups, by their lowest rank."""
        return self.chosen.groups

    @property
    def roots(self) -> tuple[int, ...]:
        """The rank of each group's root."""
        return tuple(group.root for group in self.groups)

    @property
    def center(self) -> int:
        """Id of the memory node that holds the center."""
        return self.chosen.center

    def index_of(self, rank: int) -> int:
        """Return the number of a worker's group."""
        return next(n for n, group in enumerate(self.groups) if rank in group.ranks)

    def __str__(self) -> str:
        """Return the tables as text."""
        out = io.StringIO()
        console = Console(file=out, width=WIDTH, highlight=False)
        console.print(self._links_table())
        console.print(self._cuts_table())
        console.print(self.reason)
        return out.getvalue().rstrip()

    def _links_table(self) -> Table:
        shown = _table("links: ms there and back, MB/s put / get; * mapped memory")
        shown.add_column("rank")
        shown.add_column("host")
        for node in self.links.nodes:
            shown.add_column(f"node {node}", justify="right")
        for rank, row in enumerate(self.links.rows):
            shown.add_row(str(rank), self.links.name_of(rank), *(_shown(link) for link in row))
        return shown

    def _cuts_table(self) -> Table:
        shown = _table(
            f"predicted seconds; model {self.nbytes / 1e6:.1f} MB, period {self.period}"
        )
        for name in ("", "groups (root first, at node)", "center"):
            shown.add_column(name)
        for name in ("mean", "exchange", "step"):
            shown.add_column(name, justify="right")
        for cut in self.cuts:
            seconds = (cut.mean_s, cut.exchange_s, cut.step_s)
            shown.add_row(
                ">" if cut == self.chosen else "",
                " ".join(_named(group) for group in cut.groups),
                f"node {cut.center}",
                *(f"{each:.4f}" for each in seconds),
            )
        return shown


def _table(title: str) -> Table:
    return Table(title=title, title_justify="left", box=boxes.SIMPLE)


def _shown(link: Link) -> str:
    rates = " / ".join(_digits(rate / 1e6) for rate in (link.put_rate, link.get_rate))
    return f"{link.latency_s * 1e3:.2f}, {rates}{'*' if link.is_local else ''}"


def _digits(number: float) -> str:
    return f"{number:.0f}" if number >= 1000.0 else f"{number:.1f}"


def _named(group: Group) -> str:
    ranks = ",".join(map(str, group.ranks))
    return f"{{{ranks}}}" + ("" if group.node is None else f"@{group.node}")

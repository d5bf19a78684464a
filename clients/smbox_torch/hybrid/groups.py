"""Placement of a rank in HybridSGD: its group, whether it is the root, and the center's box."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

import torch
import torch.distributed as dist

from smbox import Box
from smbox.errors import ConfigError, RegionNotFoundError
from smbox_torch.averaging.box_group import AnyGroup, BoxGroup
from smbox_torch.averaging.sync_group import check_timing
from smbox_torch.boxes import BoxLike
from smbox_torch.checks import whole
from smbox_torch.hybrid.roles import ExchangeSettings
from smbox_torch.hybrid.root import groups_of
from smbox_torch.topology.choice import choose
from smbox_torch.topology.hierarchy import Topology
from smbox_torch.topology.measuring import boxes_of, measure
from smbox_torch.workers.claim import check_run_name, claim_of
from smbox_torch.world import World

__all__ = ["Groups", "Placement", "Run", "find_placement"]

AUTO = "auto"

Groups = int | str | Topology | None
"""The groups as specified by the user: their number, "auto", or a topology."""

CENTER_ITEMSIZE = 4


@dataclass(frozen=True, slots=True)
class Run:
    """The arguments of a run on one rank.

    Args:
        name: prefix of the regions.
        world: rank and size of this process.
        settings: settings of the exchanges with the center.
        timeout_s: time after which a live rank that does not respond is considered lost, in
            seconds.
        bucket_nbytes: largest number of bytes of gradients that are averaged at once.

    Raises:
        TypeError, LimitError, ConfigError: the name, a time or a number is invalid.
    """

    name: str
    world: World
    settings: ExchangeSettings
    timeout_s: float
    bucket_nbytes: int

    def __post_init__(self) -> None:
        check_run_name(self.name)
        check_timing(self.bucket_nbytes, self.timeout_s)


@dataclass(frozen=True, slots=True)
class Placement:
    """The placement of one rank.

    Args:
        box: box of the center; None: this rank has none.
        is_root: whether this rank exchanges with the center.
        group: the group that steps synchronously; None: the ranks of this host.
        groups: number of groups.
        index: number of this group, the rank of its root among the roots; None: unknown.
        topology: the topology that determined the group, or None.
    """

    box: BoxLike | None
    is_root: bool
    group: AnyGroup | None
    groups: int
    index: int | None = None
    topology: Topology | None = None


def find_placement(
    run: Run,
    groups: Groups,
    box: BoxLike | None,
    group: dist.ProcessGroup | None,
    parameters: Sequence[torch.Tensor],
) -> Placement:
    """Determine the placement of a rank; with "auto" all ranks measure their links first.

    Args:
        run: arguments of the run on this rank.
        groups: the groups as specified by the user.
        box: the box of this rank, or None.
        group: the process group that the user passed, or None.
        parameters: the parameters that are exchanged.

    Raises:
        ConfigError: the arguments contradict each other; nothing was created.
        ConnectError: "auto": a link cannot be measured; no region of a model was created.
        WorkerLostError: "auto": a worker died meanwhile; no region of a model was created.
    """
    if groups is None:
        groups = groups_of(run.world, group, is_needed=run.settings.counts_groups)
    if not isinstance(groups, str | Topology):
        groups = whole("groups", groups)
        local_rank = run.world.local_rank if group is None else dist.get_rank(group)
        are_hosts = group is None and groups == run.world.group_world_size
        index = run.world.group_rank if are_hosts else None
        return Placement(box, local_rank == 0, group, groups, index)
    if group is not None:
        raise ConfigError('group= cannot be combined with groups="auto" or a Topology')
    if not isinstance(box, Box):
        raise ConfigError('groups="auto" needs a box of smbox on every rank: smbox.connect()')
    if isinstance(groups, str):
        if groups != AUTO:
            raise ConfigError('groups= is a number, "auto" or a Topology', groups=groups)
        nbytes = CENTER_ITEMSIZE * sum(each.numel() for each in parameters)
        links = measure(box, run.name, world=run.world, timeout_s=run.timeout_s)
        center = _center_node(run.name, box)
        groups = choose(links, nbytes=nbytes, period=run.settings.period, center=center)
    return _placement_in(run, groups, box)


def _center_node(name: str, box: Box) -> int | None:
    """Return the node with the center of an earlier start of the run, or None.

    Other measurements may make another node the best one, which does not have this center.
    """
    for node, each in boxes_of(box).items():
        with suppress(RegionNotFoundError):
            each.attach(claim_of(name), timeout_s=None)
            return node
    return None


def _placement_in(run: Run, topology: Topology, box: Box) -> Placement:
    world, boxes = run.world, boxes_of(box)
    nodes = {topology.center, *(group.node for group in topology.groups)} - {None}
    if len(topology.links.rows) != world.world_size or not nodes <= boxes.keys():
        raise ConfigError(
            "this topology belongs to another run: measure again",
            workers=len(topology.links.rows),
            world_size=world.world_size,
            nodes=sorted(node for node in nodes if node is not None),
            found=[*boxes],
        )
    index, count = topology.index_of(world.rank), len(topology.groups)
    mine, center = topology.groups[index], boxes[topology.center]
    if mine.node is None:
        if mine.ranks != tuple(world.rank_of(each) for each in range(world.local_world_size)):
            raise ConfigError(
                "a group without a node must have all workers of one host",
                ranks=mine.ranks,
                local_world_size=world.local_world_size,
            )
        return Placement(center, world.is_group_root, None, count, index, topology)
    group = BoxGroup(
        boxes[mine.node],
        f"{run.name}.group{index}",
        mine.ranks,
        world.rank,
        timeout_s=run.timeout_s,
    )
    return Placement(center, group.rank == 0, group, count, index, topology)

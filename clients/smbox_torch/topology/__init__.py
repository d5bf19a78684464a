"""Measured links of a run, and the hierarchy of groups derived from them."""

from __future__ import annotations

from smbox_torch.topology.choice import choose
from smbox_torch.topology.hierarchy import Group, Topology
from smbox_torch.topology.links import Link, Links
from smbox_torch.topology.measuring import measure

__all__ = ["Group", "Link", "Links", "Topology", "choose", "measure"]

"""Boxes over several memory nodes of this process, without sockets; see inproc_box.py."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from smbox.client.connection import OpenTransport
from smbox.config import ClientConfig
from smbox.many.box import ManyBox
from smbox.many.striping import Node
from smbox.region import Region
from smbox.testing.inproc_box import inproc_paths


class StripingBox(ManyBox):
    """A ManyBox that creates striped regions by default, to run any code on striped regions."""

    def create(self, name: str, *arguments: Any, **options: Any) -> Region:
        """Create a region, striped by default."""
        return super().create(name, *arguments, **({"layout": "striped"} | options))


def inproc_many(
    transports: Mapping[int, OpenTransport],
    config: ClientConfig,
    kind: type[ManyBox] = ManyBox,
) -> ManyBox:
    """Return a box that sends messages for all verbs.

    Args:
        transports: functions that open connections to each node, by its id.
        config: settings; the address in it is not used.
        kind: class of the box.
    """
    return kind(
        [
            Node(
                inproc_paths(open_transport, replace(config, address=f"inproc://node{node}")),
                node,
            )
            for node, open_transport in transports.items()
        ]
    )

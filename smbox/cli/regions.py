"""`smbox ls`, `stat` and `rm`: the regions of one or several memory nodes."""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np
import typer

from smbox.box import Box
from smbox.cli import layouts, output
from smbox.cli.layouts import Listed
from smbox.config import addresses_of
from smbox.connecting import connect
from smbox.errors import RegionNotFoundError
from smbox.memory.layout import Consistency, RegionKind
from smbox.region import Region

Address = Annotated[
    str | None,
    typer.Option(
        "--address",
        "-a",
        help="Address of the memory node, or several with commas; default: $SMBOX_ADDRESS.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Name = Annotated[str, typer.Argument(help="Name of the region, counter or barrier.")]


def ls(*, address: Address = None, json: Json = False) -> None:
    """List the regions of one or several memory nodes, with the parts of striped regions."""
    with connect(address) as box:
        found = layouts.survey(box)
    if json:
        output.print_json([described(listed) for listed in found])
        return
    output.print_table(
        ["NAME", "KIND", "DTYPE", "SHAPE", "SIZE", "CONSISTENCY", "LAYOUT", "ADDRESS"],
        [
            [
                info.name,
                RegionKind.NAMES[info.kind],
                info.dtype.name,
                "x".join(map(str, info.shape)) or "scalar",
                output.human_nbytes(info.nbytes),
                Consistency.NAMES[info.consistency],
                layout,
                f"{int(info.address):#x}",
            ]
            for _, layout, info in found
        ],
    )


def stat(name: Name, *, address: Address = None, json: Json = False) -> None:
    """Show all regions, counters and barriers of a name, with version or value and address."""
    with connect(address) as box:
        found = [described(listed) | _state(box, listed) for listed in named(box, name)]
    if json:
        output.print_json(found)
        return
    for index, facts in enumerate(found):
        if index:
            print()
        output.print_facts(_readable(facts))


def rm(name: Name, *, address: Address = None) -> None:
    """Free all regions, counters and barriers of a name; later uses raise RegionFreedError."""
    with connect(address) as box:
        for info, layout, _ in named(box, name):
            if layout == layouts.STRIPED and len(box.nodes) == 1:
                box.attach(name, timeout_s=None)  # raises: the box must connect to all nodes
            box.free(info)


def named(box: Box, name: str) -> list[Listed]:
    """Return all regions, counters and barriers of a name: at most one of a kind on each node.

    Raises:
        RegionNotFoundError: nothing has this name.
    """
    every = layouts.survey(box)
    found = [listed for listed in every if listed.info.name == name]
    if not found:
        # the regions of a run, lock or publication: their names begin with its name and a dot
        longer = sorted(
            {each.info.name for each in every if each.info.name.startswith(f"{name}.")}
        )
        facts = {"longer_names": ", ".join(longer)} if longer else {}
        raise RegionNotFoundError("no region has this name; see `smbox ls`", name=name, **facts)
    return found


def described(listed: Listed) -> dict[str, Any]:
    """Return the facts about a region that `ls --json` and `stat` print."""
    info = listed.whole
    return {
        "name": info.name,
        "kind": RegionKind.NAMES[info.kind],
        "dtype": info.dtype.name,
        "shape": list(info.shape),
        "nbytes": info.nbytes,
        "consistency": Consistency.NAMES[info.consistency],
        "layout": listed.layout,
        "node": info.address.node,
        "address": int(info.address),
    }


def _state(box: Box, listed: Listed) -> dict[str, Any]:
    info, layout, _ = listed
    if info.kind == RegionKind.COUNTER:
        return {"value": int(box.get(info.address, info.nbytes).view(np.int64)[0])}
    if info.kind == RegionKind.BARRIER or layout in {layouts.PART, layouts.ORPHAN}:
        return {}
    if layout == layouts.STRIPED:
        return _of_region(box.attach(info.name, timeout_s=None))
    # Connect to the region's node: an optimizer state is not on the node of its name.
    with connect(_address_of(box, info.address.node)) as alone:
        return _of_region(alone.attach(info.name, timeout_s=None))


def _address_of(box: Box, node_id: int) -> str:
    ids = [node.node_id for node in box.nodes]
    return addresses_of(box.address)[ids.index(node_id)]


def _readable(facts: dict[str, Any]) -> dict[str, Any]:
    """Format the address as `ls` does, and parts as rows a:b."""
    shown = facts | {"address": f"{facts['address']:#x}"}
    if "parts" in facts:
        shown["parts"] = ", ".join(
            f"rows {part['first_row']}:{part['limit_row']} on node {part['node']}"
            for part in facts["parts"]
        )
    return shown


def _of_region(region: Region) -> dict[str, Any]:
    parts = [part._asdict() for part in region.parts]
    return {"version": region.version, "is_local": region.is_local, "parts": parts}

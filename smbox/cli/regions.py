"""`smbox ls`, `stat` and `rm`: the regions of a memory node."""

from __future__ import annotations

from typing import Annotated, Any, Final

import numpy as np
import typer

from smbox.box import Box
from smbox.cli import output
from smbox.connecting import connect
from smbox.errors import RegionNotFoundError
from smbox.memory.layout import Consistency, RegionKind
from smbox.paths.work import RegionInfo

KINDS: Final = {
    RegionKind.ARRAY: "array",
    RegionKind.COUNTER: "counter",
    RegionKind.BARRIER: "barrier",
}

Address = Annotated[
    str | None,
    typer.Option("--address", "-a", help="Of the memory node; else $SMBOX_ADDRESS."),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Name = Annotated[str, typer.Argument(help="Name of the region, counter or barrier.")]


def ls(*, address: Address = None, json: Json = False) -> None:
    """List the regions of a memory node."""
    with connect(address) as box:
        found = box.regions()
    if json:
        output.print_json([described(info) for info in found])
        return
    output.print_table(
        ["NAME", "KIND", "DTYPE", "SHAPE", "SIZE", "CONSISTENCY", "ADDRESS"],
        [
            [
                info.name,
                KINDS[info.kind],
                info.dtype.name,
                "x".join(map(str, info.shape)) or "scalar",
                output.human_nbytes(info.nbytes),
                Consistency.NAMES[info.consistency],
                f"{int(info.address):#x}",
            ]
            for info in found
        ],
    )


def stat(name: Name, *, address: Address = None, json: Json = False) -> None:
    """Show what has this name: what it is, its version or value, and how it is reached."""
    with connect(address) as box:
        found = [described(info) | _state(box, info) for info in named(box, name)]
    if json:
        output.print_json(found)
        return
    for facts in found:
        output.print_facts(facts)


def rm(name: Name, *, address: Address = None) -> None:
    """Free what has this name; whoever still uses it gets RegionFreedError."""
    with connect(address) as box:
        for info in named(box, name):
            box.free(info)


def named(box: Box, name: str) -> list[RegionInfo]:
    """Return what has this name: at most one of each kind.

    Raises:
        RegionNotFoundError: nothing has.
    """
    found = [info for info in box.regions() if info.name == name]
    if not found:
        raise RegionNotFoundError("no region has this name; `smbox ls` lists them", name=name)
    return found


def described(info: RegionInfo) -> dict[str, Any]:
    """Return what is known of a region, for people and for JSON."""
    return {
        "name": info.name,
        "kind": KINDS[info.kind],
        "dtype": info.dtype.name,
        "shape": list(info.shape),
        "nbytes": info.nbytes,
        "consistency": Consistency.NAMES[info.consistency],
        "address": int(info.address),
    }


def _state(box: Box, info: RegionInfo) -> dict[str, Any]:
    if info.kind == RegionKind.COUNTER:
        return {"value": int(box.get(info.address, info.nbytes).view(np.int64)[0])}
    if info.kind == RegionKind.BARRIER:
        return {}
    region = box.attach(info.name, timeout_s=0.0)
    return {"version": region.version, "is_local": region.is_local}

"""`smbox gc --address`: orphaned parts of striped regions on the nodes of an address space."""

from __future__ import annotations

from contextlib import suppress

from smbox.box import Box
from smbox.cli import layouts, output
from smbox.connecting import connect
from smbox.errors import RegionFreedError
from smbox.paths.work import RegionInfo


def collect(address: str, *, yes: bool, json: bool) -> None:
    """Show or remove the orphaned parts on all nodes of an address space."""
    with connect(address) as box:
        found = layouts.find_orphans(box)
        if yes:
            _remove(box, found)
    if json:
        output.print_json([_shown(info, removed=yes) for info in found])
        return
    action = "removed" if yes else "would remove (--yes)"
    output.print_table(
        ["PART", "NODE", "SIZE", "ACTION"],
        [
            [info.name, info.address.node, output.human_nbytes(info.nbytes), action]
            for info in found
        ],
    )


def _remove(box: Box, found: list[RegionInfo]) -> None:
    for info in found:
        with suppress(RegionFreedError):  # by another client
            box.free(info)


def _shown(info: RegionInfo, *, removed: bool) -> dict[str, object]:
    return {
        "part": info.name,
        "node": info.address.node,
        "nbytes": info.nbytes,
        "address": int(info.address),
        "removed": removed,
    }

"""`smbox doctor`: the features of smbox that this machine and environment support."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final

import typer

from smbox.box import Box
from smbox.cli import orphans, output
from smbox.cli.regions import Address, Json
from smbox.config import VARIABLES
from smbox.connecting import connect
from smbox.errors import NativeError, RemoteError, SegmentError, SmboxError
from smbox.memory import segment
from smbox.native import library

PACKAGES: Final = (
    "smbox",
    "numpy",
    "pyzmq",
    "posix_ipc",
    "msgspec",
    "ml_dtypes",
    "torch",
)
SMALL_SHM_NBYTES: Final = 1 << 30


def doctor(*, address: Address = None, json: Json = False) -> None:
    """Show versions, room in shared memory, the native library and how a node is reached.

    Exits with 3 where an address is known and no node answers there, and as the other commands
    where it says no or the settings are impossible.
    """
    node, code = about_node(address)
    report = {"versions": versions(), "host": about_host(), "node": node}
    if json:
        output.print_json(report)
    else:
        for title, facts in report.items():
            print(title)
            output.print_facts({f"  {name}": value for name, value in _flat(facts).items()})
    if code:
        raise typer.Exit(code)


def _flat(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Take facts of several nodes apart, a line each."""
    found: dict[str, Any] = {}
    for name, value in facts.items():
        if isinstance(value, dict):
            found |= {f"{name} {inner}": each for inner, each in value.items()}
        else:
            found[name] = value
    return found


def versions() -> dict[str, str]:
    """Return the releases of Python and of the packages that smbox can use."""
    return {"python": platform.python_version()} | {name: _version(name) for name in PACKAGES}


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def about_host() -> dict[str, Any]:
    """Return what this host has: system, cores, shared memory, native library."""
    return {
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "cores": os.cpu_count(),
        "shared memory": _room(),
        "dead memory": _dead_memory(),
        "native library": _native(os.environ),
        "settings": _settings(os.environ),
    }


def _settings(environment: Mapping[str, str]) -> str:
    """Tell the variables that are set, and those that nothing reads."""
    names = sorted(name for name in environment if name.startswith("SMBOX_"))
    known = [f"{name}={environment[name]}" for name in names if name in VARIABLES]
    unknown = [f"{name} (unknown: misspelt?)" for name in names if name not in VARIABLES]
    return ", ".join(known + unknown) or "no SMBOX_ variable is set"


def _room() -> str:
    try:
        free = segment.room_nbytes()
    except OSError as error:
        return f"none: {error}"
    advice = ""
    if free < SMALL_SHM_NBYTES:
        advice = "; little: mount -o remount,size=..., or docker run --shm-size=..."
    return f"{output.human_nbytes(free)} free in {segment.DIRECTORY}{advice}"


def _dead_memory() -> str:
    try:
        dead = [memory for memory in orphans.survey() if memory.state == "dead"]
    except (OSError, SegmentError) as error:
        return f"cannot tell: {error}"
    nbytes = output.human_nbytes(sum(memory.nbytes for memory in dead))
    return f"{nbytes} of {len(dead)} nodes that died; `smbox gc` shows it" if dead else "none"


def _native(environ: Mapping[str, str]) -> str:
    try:
        why_not = library.why_not_native(environ)
        if why_not is None:
            built = library.load()
            return f"{built.file}, hash {built.source_hash}, built by {built.compiler}"
    except NativeError as error:
        why_not = str(error)
    return f"none, so memory is never mapped: {why_not}"


def about_node(address: str | None) -> tuple[dict[str, Any], int]:
    """Return where a memory node is, how it is reached and why not faster; the exit code."""
    known = address or os.environ.get("SMBOX_ADDRESS")
    if not known:
        return {"address": "none: pass --address or set SMBOX_ADDRESS"}, 0
    try:
        with connect(known) as box:
            return _about_box(box, known), 0
    except SmboxError as error:
        answered = isinstance(error, RemoteError)  # and said no
        facts = {"address": known, "reachable": answered, "error": str(error)}
        return facts, output.exit_code(error)


def _about_box(box: Box, address: str) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "address": address,
        "reachable": True,
        "transport": box.transport,
        "because": box.transport_reason,
    }
    return facts | box.stats()

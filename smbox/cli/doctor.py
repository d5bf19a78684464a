"""`smbox doctor`: the features of smbox that this machine and environment support."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from dataclasses import fields
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final

import typer

from smbox.box import Box
from smbox.cli import orphans, output
from smbox.cli.regions import Address, Json
from smbox.config import ClientConfig, variable_of
from smbox.connecting import connect
from smbox.errors import ConfigError, NativeError, RemoteError, SegmentError, SmboxError
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
VARIABLES: Final = {
    *(variable_of(field.name) for field in fields(ClientConfig)),
    *("SMBOX_NO_NATIVE", "SMBOX_REPORT_FD", "SMBOX_MASTER_ADDR", "SMBOX_MASTER_PORT"),
    *("SMBOX_RANK", "SMBOX_WORLD_SIZE", "SMBOX_LOCAL_RANK", "SMBOX_LOCAL_WORLD_SIZE"),
    *("SMBOX_GROUP_RANK", "SMBOX_GROUP_WORLD_SIZE", "SMBOX_RUN_ID"),
    *("SMBOX_RESTART_COUNT", "SMBOX_WORKER_RESTART_COUNT"),
}
"""The environment variables that smbox and smbox_torch read."""

SMALL_SHM_NBYTES: Final = 1 << 30


def doctor(*, address: Address = None, json: Json = False) -> None:
    """Show versions, free shared memory, the native library and the transport to a node.

    The exit code is 3 if no node answers at a given address, and that of the other commands if
    the node refuses or a setting is invalid.
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
    """Flatten the facts of several nodes, for one line each."""
    found: dict[str, Any] = {}
    for name, value in facts.items():
        if isinstance(value, dict):
            found |= {f"{name} {inner}": each for inner, each in value.items()}
        else:
            found[name] = value
    return found


def versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that smbox can use."""
    return {"python": platform.python_version()} | {name: _version(name) for name in PACKAGES}


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def about_host() -> dict[str, Any]:
    """Return the system, cores, shared memory, native library and settings of this host."""
    return {
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "cores": os.cpu_count(),
        "shared memory": _shared_memory(),
        "dead memory": _dead_memory(),
        "native library": _native(os.environ),
        "settings": _settings(os.environ),
    }


def _settings(environment: Mapping[str, str]) -> str:
    """Return the SMBOX_ variables that are set; unknown ones are marked."""
    names = sorted(name for name in environment if name.startswith("SMBOX_"))
    known = [f"{name}={environment[name]}" for name in names if name in VARIABLES]
    unknown = [f"{name} (unknown: misspelt?)" for name in names if name not in VARIABLES]
    return ", ".join(known + unknown) or "no SMBOX_ variable is set"


def _shared_memory() -> str:
    try:
        free = segment.room_nbytes()
    except OSError as error:
        return f"none: {error}"
    where, advice = segment.DIRECTORY, ""
    if not os.access(where, os.W_OK):
        cure = f"mount -o remount,rw {where}; chmod 1777 {where}"
        advice = f", but this user cannot write there, so no node can start; as root: {cure}"
    elif free < SMALL_SHM_NBYTES:
        advice = "; to get more: mount -o remount,size=..., or docker run --shm-size=..."
    return f"{output.human_nbytes(free)} free in {where}{advice}"


def _dead_memory() -> str:
    try:
        dead = [memory for memory in orphans.survey() if memory.state == "dead"]
    except (OSError, SegmentError) as error:
        return f"unknown: {error}"
    nbytes = output.human_nbytes(sum(memory.nbytes for memory in dead))
    return f"{nbytes} of {len(dead)} dead nodes; `smbox gc` lists it" if dead else "none"


def _native(environ: Mapping[str, str]) -> str:
    try:
        why_not = library.why_not_native(environ)
        if why_not is None:
            built = library.load()
            return f"{built.file}, built by {built.compiler}"
    except NativeError as error:
        why_not = str(error)
    return f"none, so memory is never mapped: {why_not}"


def about_node(address: str | None) -> tuple[dict[str, Any], int]:
    """Return the address, transport and statistics of a memory node, and the exit code."""
    known = address or os.environ.get("SMBOX_ADDRESS")
    if not known:
        return {"address": "none: pass --address or set SMBOX_ADDRESS"}, 0
    try:
        with connect(known) as box:
            return _about_box(box, known), 0
    except SmboxError as error:
        facts: dict[str, Any] = {"address": known}
        if not isinstance(error, ConfigError):  # a wrong setting: perhaps no node was asked
            facts["reachable"] = isinstance(error, RemoteError)  # the node refused
        return facts | {"error": str(error)}, output.exit_code(error)


def _about_box(box: Box, address: str) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "address": address,
        "reachable": True,
        "transport": box.transport,
        "because": box.transport_reason,
    }
    return facts | box.stats()

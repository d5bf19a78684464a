"""The command ``memnode``: parses its arguments, runs a node and reports when it is ready."""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final, cast

from memnode.config import Bind, NodeConfig
from memnode.group import NodeGroup, StartError, members
from memnode.server import NodeServer
from smbox.config import parse_size
from smbox.errors import ConfigError, OutOfMemoryError, SmboxError, TransportError
from smbox.native import library
from smbox.transports.zeromq import FILES, learn_large_blocks, start_frame_thread

EXIT_CLEAN: Final = 0
EXIT_FAILED: Final = 1
EXIT_CONFIG: Final = 2  # argparse's own
EXIT_MEMORY: Final = 3  # another node owns the memory, or it cannot be created
EXIT_ADDRESS: Final = 4  # the address cannot be bound

EXITS: Final[tuple[tuple[type[Exception], int], ...]] = (
    (ConfigError, EXIT_CONFIG),
    (TransportError, EXIT_ADDRESS),
    (OSError, EXIT_MEMORY),  # SegmentError or SystemLimitError
    (OutOfMemoryError, EXIT_MEMORY),
    (SmboxError, EXIT_FAILED),
)

DEFAULT_BIND: Final = "tcp://127.0.0.1:7070"
FILES_OF_ADDRESS: Final = 4
"""Open files of an address that the node listens at, and of its first connections."""

LOG_LEVELS: Final = ("debug", "info", "warning", "error")

_LOG = logging.getLogger("memnode")


def parser() -> argparse.ArgumentParser:
    """Build the parser of the command line."""
    command = argparse.ArgumentParser(
        prog="memnode",
        add_help=False,  # argparse does not report that its output cannot be written
        description="Serve a shared parameter memory: named regions that live in /dev/shm.",
        epilog="Exit status: 0 stopped cleanly, 1 failed, 2 invalid arguments, "
        "3 memory owned by another node or not available, 4 address cannot be bound.",
    )
    add = command.add_argument
    add("-h", "--help", action="store_true", help="show this help message and exit")
    add(
        "--bind",
        action="append",
        metavar="ADDRESS",
        help="address to serve: tcp://HOST:PORT (port 0: a free port) or ipc://PATH; may be"
        f" repeated (default {DEFAULT_BIND})",
    )
    add(
        "--name",
        help="name of the memory in /dev/shm (default: port or file of the first address)",
    )
    add(
        "--memory",
        metavar="SIZE",
        help="memory limit, for example 8GiB (default: 0.9 of the free space of /dev/shm)",
    )
    add(
        "--node-id",
        type=int,
        default=0,
        metavar="N",
        help="id of the node, the upper 16 bits of its addresses (default 0); must differ among"
        " nodes that clients use together",
    )
    add(
        "--nodes",
        type=int,
        metavar="N",
        help="start N nodes (1 to 256), one process each, with consecutive ids, ports and"
        " names; --memory is the limit of each (default: they share the free space)",
    )
    add("--json", action="store_true", help="print the ready line as a JSON object")
    add("--keep", action="store_true", help="leave the memory in place on a clean stop")
    add("--insecure", action="store_true", help="serve other hosts without keys, unencrypted")
    add(
        "--keys",
        type=Path,
        metavar="DIR",
        help="key folder made by `smbox keygen`: encrypts tcp, and clients need a key",
    )
    add("--parent-pid", type=int, metavar="PID", help="stop when this process ends")
    add("--version", action="store_true", help="show the release and exit")
    add("--log-level", choices=LOG_LEVELS, default="warning", help="level of the log on stderr")
    return command


def config_of(options: argparse.Namespace) -> NodeConfig:
    """Return the configuration of parsed options.

    Raises:
        ConfigError: an option is invalid.
    """
    return NodeConfig(
        binds=tuple(Bind.parse(address) for address in options.bind or [DEFAULT_BIND]),
        name=options.name,
        memory_nbytes=None if options.memory is None else parse_size(options.memory),
        keep=options.keep,
        insecure=options.insecure,
        keys=options.keys,
        parent_pid=options.parent_pid,
        node_id=options.node_id,
    )


def ready_line(
    addresses: Sequence[str], name: str, *, as_json: bool, address: str | None = None
) -> str:
    """Return the line that reports that the node is ready.

    Args:
        addresses: all addresses of the node.
        name: name of the node.
        as_json: return a JSON object.
        address: address for clients; None: the first.
    """
    if not as_json:
        shown = address or " ".join(addresses)
        return f"memnode {name} is ready at {shown} (pid {os.getpid()})"
    ready = {"event": "ready", "address": address or addresses[0], "addresses": addresses}
    return json.dumps(ready | {"pid": os.getpid(), "name": name})


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a memory node until a signal stops it.

    Args:
        arguments: arguments of the command line; None: those of the process.

    Returns:
        The exit status (see the constants ``EXIT_*``).
    """
    options = parser().parse_args(arguments)
    logging.basicConfig(
        level=options.log_level.upper(),
        stream=sys.stderr,
        format="%(asctime)s %(levelname)s %(name)s %(message)s",
    )
    try:
        if options.help:
            _print(parser().format_help().rstrip())
            return EXIT_CLEAN
        if options.version:
            from importlib import metadata  # noqa: PLC0415 - slow, and not needed by a node

            _print(f"memnode {metadata.version('smbox')}")
            return EXIT_CLEAN
        if options.nodes is not None:
            return _serve_group(options)
        return _serve(config_of(options), as_json=options.json)
    except SmboxError as error:
        if sys.stderr is not None:  # closed: print would take stdout instead
            print(f"memnode: {error}", file=sys.stderr)
        if isinstance(error, StartError):
            return max(cast("int", error.facts["exit_status"]), EXIT_FAILED)
        return next(status for kind, status in EXITS if isinstance(error, kind))
    except Exception:  # noqa: BLE001 -- any other error gives the exit status 1
        _LOG.exception("the node failed; its memory stays in place")
        return EXIT_FAILED
    finally:
        for stream in filter(None, (sys.stdout, sys.stderr)):
            try:
                stream.flush()
            except OSError:  # else Python tries again at its end, and exits with status 120
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _print(line: str) -> None:
    try:
        print(line, flush=True)
    except OSError as error:
        raise SmboxError(f"cannot write to standard output: {error}") from error


def _serve(config: NodeConfig, *, as_json: bool) -> int:
    library.load()  # fail now if it is missing, not at the first change
    learn_large_blocks()  # reuse the memory of one message for the next
    start_frame_thread(FILES + FILES_OF_ADDRESS * len(config.binds))
    server = NodeServer(config)
    with server.opened():
        _print(ready_line(server.addresses, server.name, as_json=as_json))
        server.run()
    return EXIT_CLEAN


def _serve_group(options: argparse.Namespace) -> int:
    config = config_of(options)
    nodes = members(config, options.nodes)
    group = NodeGroup(nodes, options.log_level, parent_pid=options.parent_pid)
    with group.opened():
        name, together = config.name or "group", ",".join(group.addresses)
        _print(ready_line(group.addresses, name, as_json=options.json, address=together))
        status = group.run()
    return EXIT_CLEAN if status is None else max(status, EXIT_FAILED)

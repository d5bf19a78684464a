"""Memory nodes in hosts of the laboratory, with keys unless the file says otherwise."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from lab.hosts import FROM_HOSTS, SHARED, Host
from smbox import keys
from smbox.errors import ConnectError

PORT: Final = 7070
CLIENT: Final = "worker"
STOP_S: Final = 20.0


@contextmanager
def serving(hosts: Sequence[Host], *, has_keys: bool) -> Iterator[dict[str, str]]:
    """Start a memory node in each host that has memory; they stop in the end.

    Yields:
        The variables by which clients in any host reach all of them: SMBOX_ADDRESS, and
        SMBOX_KEY if nodes ask for keys. Empty without nodes.

    Raises:
        ConnectError: a node did not start; none is left.
    """
    places = [host for host in hosts if host.spec.memory]
    folder = Path("keys")
    if has_keys and places:
        keys.make_node_key(SHARED / folder)
        keys.add_client(SHARED / folder, keys.Authorised(CLIENT, keys.Role.ADMIN))
    security = ["--keys", str(FROM_HOSTS / folder)] if has_keys else ["--insecure"]
    nodes: list[subprocess.Popen[str]] = []
    try:
        for number, host in enumerate(places):
            nodes.append(_node(host, number, security))
        address = ",".join(_address(node) for node in nodes)
        told = {"SMBOX_ADDRESS": address} if places else {}
        if has_keys and places:
            told["SMBOX_KEY"] = str(FROM_HOSTS / folder / f"{CLIENT}.key")
        yield told
    finally:
        for node in nodes:
            node.terminate()
        for node in nodes:
            _end(node)


def _node(host: Host, number: int, security: Sequence[str]) -> subprocess.Popen[str]:
    words = [
        sys.executable,
        "-m",
        "memnode",
        "--bind",
        f"tcp://{host.spec.ip}:{PORT}",
        "--json",
    ]
    words += ["--node-id", str(number), "--memory", host.spec.memory, "--log-level", "error"]
    return subprocess.Popen(
        [*host.enter(), *words, *security],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def _address(node: subprocess.Popen[str]) -> str:
    assert node.stdout is not None
    line = node.stdout.readline()
    if not line:
        raise ConnectError("a memory node does not start; its words are above")
    return str(json.loads(line)["address"])


def _end(node: subprocess.Popen[str]) -> None:
    try:
        node.communicate(timeout=STOP_S)
    except subprocess.TimeoutExpired:
        node.kill()
        node.communicate()

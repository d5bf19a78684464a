"""Hosts: each a network, a host name and a /dev/shm of its own, held by a process."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from lab import enclosure, links
from lab.spec import HostSpec, Spec
from smbox.errors import ConfigError, ConnectError

SHARED: Final = Path("/dev/shm")
"""A file system in memory that only the laboratory's own process sees."""

FROM_HOSTS: Final = Path("/proc/1/root") / SHARED.relative_to("/")
"""The same folder as programs in hosts find it; each host has another /dev/shm."""

KEEPER: Final = """
set -e
echo "$1" > /proc/sys/kernel/hostname
mount --bind "$2" /etc/hosts
mount -t tmpfs -o mode=1777 tmpfs /dev/shm
ip link set dev lo up
echo ready
exec sleep infinity
"""
"""Holds a host: its namespaces live as long as the process in them."""


@dataclass(frozen=True, slots=True)
class Host:
    """A host that stands.

    Attributes:
        spec: what it is.
        pid: of the process that holds it.
        port: its link's end at the bridge.
    """

    spec: HostSpec
    pid: int
    port: str

    def enter(self) -> list[str]:
        """Return the words in front of a program that run it here, in this folder."""
        words = ["nsenter", "--target", str(self.pid), "--net", "--uts", "--mount"]
        words += ["env", f"--chdir={Path.cwd()}"]
        if self.spec.cores:
            words += ["taskset", "--cpu-list", ",".join(map(str, self.spec.cores))]
        return words


@contextmanager
def standing(spec: Spec) -> Iterator[list[Host]]:
    """Make all hosts and links; they go in the end.

    Raises:
        ConfigError: this process is not inside an enclosure; nothing was touched.
        ConnectError: a host or link could not be made.
    """
    if not enclosure.is_inside():
        raise ConfigError("hosts are made inside an enclosure only: see lab/enclosure.py")
    with ExitStack() as stack:
        links.told(["mount", "-t", "tmpfs", "-o", "mode=0755", "tmpfs", str(SHARED)])
        stack.callback(links.told, ["umount", str(SHARED)])
        bridges = links.make_bridges(spec.islands, stack)
        names = SHARED / "hosts"
        lines = [f"{host.ip} {host.name}" for host in spec.hosts]
        names.write_text("\n".join(["127.0.0.1 localhost", *lines, ""]))
        yield [
            _host(host, f"port{number}", bridges[host.island], names, stack)
            for number, host in enumerate(spec.hosts)
        ]


def _host(spec: HostSpec, port: str, bridge: str, names: Path, stack: ExitStack) -> Host:
    """Make a host and its link; ``stack`` takes both away."""
    keeper = _keeper(spec, names)
    stack.callback(keeper.communicate)
    stack.callback(keeper.kill)
    links.connect(spec, keeper.pid, port, bridge, stack)
    return Host(spec, keeper.pid, port)


def _keeper(host: HostSpec, names: Path) -> subprocess.Popen[str]:
    words = ["unshare", "--net", "--uts", "--mount"]
    keeper = subprocess.Popen(
        [*words, "sh", "-c", KEEPER, "keeper", host.name, str(names)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert keeper.stdout is not None
    if keeper.stdout.readline() != "ready\n":
        raise ConnectError("a host cannot be made; its words are above", host=host.name)
    return keeper

"""Hosts: each a network, host name and /dev/shm that a process holds; and their links."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from lab import enclosure
from lab.spec import HostSpec, Spec
from smbox.errors import ConfigError, ConnectError

SHARED: Final = Path("/dev/shm")
"""A file system in memory that only the laboratory's own process sees."""

FROM_HOSTS: Final = Path("/proc/1/root") / SHARED.relative_to("/")
"""The same folder as programs in hosts find it; each host has another /dev/shm."""

BRIDGE: Final = "switch"
BURST: Final = 128 * 1024
"""Bytes that a link may send at once; more than one packet before segmentation (64 KiB)."""

QUEUE: Final = 1 << 20
"""Bytes that wait at a shaped port; what comes on top is dropped, as by a switch."""

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
            words.append(f"OMP_NUM_THREADS={len(self.spec.cores)}")
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
    _told(["mount", "-t", "tmpfs", "-o", "mode=0755", "tmpfs", str(SHARED)])
    names = SHARED / "hosts"
    lines = [f"{host.ip} {host.name}" for host in spec.hosts]
    names.write_text("\n".join(["127.0.0.1 localhost", *lines, ""]))
    _told(["ip", "link", "set", "dev", "lo", "up"])
    _told(["ip", "link", "add", "name", BRIDGE, "type", "bridge"])
    _told(["ip", "link", "set", "dev", BRIDGE, "addrgenmode", "none", "up"])
    keepers: list[subprocess.Popen[str]] = []
    try:
        keepers.extend(_keeper(host, names) for host in spec.hosts)
        hosts = [
            Host(host, keeper.pid, f"port{number}")
            for number, (host, keeper) in enumerate(zip(spec.hosts, keepers, strict=True))
        ]
        for each in hosts:
            _link(each)
        yield hosts
    finally:
        for keeper in keepers:
            keeper.kill()
            keeper.communicate()


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


def _link(host: Host) -> None:
    """Connect a host with the bridge, and shape both ways."""
    spec, pid = host.spec, str(host.pid)
    ends = ["type", "veth", "peer", "name", "eth0", "netns", pid]
    _told(["ip", "link", "add", "name", host.port, *ends])
    _told(
        ["ip", "link", "set", "dev", host.port, "master", BRIDGE, "addrgenmode", "none", "up"]
    )
    there = ["nsenter", "--target", pid, "--net"]
    _told([*there, "ip", "address", "add", f"{spec.ip}/24", "dev", "eth0"])
    _told([*there, "ip", "link", "set", "dev", "eth0", "addrgenmode", "none", "up"])
    shaper = ["pfifo", "limit", "10000"]  # it counts, too
    if spec.rate_mbit:
        shaper = ["tbf", "rate", f"{round(spec.rate_mbit * 1e6)}bit"]
        shaper += ["burst", str(BURST), "limit", str(BURST + QUEUE)]
    _told([*there, "tc", "qdisc", "add", "dev", "eth0", "root", *shaper])
    _told(["tc", "qdisc", "add", "dev", host.port, "root", *shaper])


def _told(words: Sequence[str]) -> None:
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ConnectError(
            f"the laboratory cannot be made: {done.stderr.strip()}", command=" ".join(words)
        )

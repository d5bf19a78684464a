"""Links from each eth0 to a port of a bridge, and from bridge to bridge, shaped both ways."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from lab.spec import HostSpec, Island
from smbox.errors import ConnectError

BRIDGE: Final = "switch"
BURST: Final = 128 * 1024
"""Bytes that a link may send at once; more than one packet before segmentation (64 KiB)."""

QUEUE: Final = 1 << 20
"""Bytes that wait at a shaped port; what comes on top is dropped, as by a switch."""

FORWARDER: Final = Path(__file__).with_name("delay.py")


def make_bridges(islands: Sequence[Island], stack: ExitStack) -> dict[str, str]:
    """Make the bridge of all, and one for each island, with a shaped link to it.

    Args:
        islands: of the laboratory.
        stack: takes everything away.

    Returns:
        The bridge of each island, by its name; of "": the bridge of all.
    """
    told(["ip", "link", "set", "dev", "lo", "up"])
    _make_bridge(BRIDGE, stack)
    found = {"": BRIDGE}
    for number, island in enumerate(islands):
        bridge = found[island.name] = f"island{number}"
        _make_bridge(bridge, stack)
        up, down = uplink(number)
        told(["ip", "link", "add", "name", up, "type", "veth", "peer", "name", down])
        stack.callback(told, ["ip", "link", "delete", "dev", up])  # both ends go
        for end, joined in ((up, bridge), (down, BRIDGE)):
            told(
                ["ip", "link", "set", "dev", end, "master", joined, "addrgenmode", "none", "up"]
            )
            told(["tc", "qdisc", "add", "dev", end, "root", *shaper(island.rate_mbit)])
    return found


def uplink(number: int) -> tuple[str, str]:
    """Return the devices by which traffic leaves an island, and by which it arrives there."""
    return f"up{number}", f"down{number}"


def _make_bridge(name: str, stack: ExitStack) -> None:
    told(["ip", "link", "add", "name", name, "type", "bridge"])
    stack.callback(told, ["ip", "link", "delete", "dev", name])
    told(["ip", "link", "set", "dev", name, "addrgenmode", "none", "up"])


def connect(spec: HostSpec, pid: int, port: str, bridge: str, stack: ExitStack) -> None:
    """Connect the host of process ``pid`` with a bridge; ``stack`` takes the link away.

    Raises:
        ConnectError: the kernel refused; what was made goes with ``stack``.
    """
    if spec.delay_ms:
        _forward(spec, pid, port, stack)
    else:
        ends = ["type", "veth", "peer", "name", "eth0", "netns", str(pid)]
        told(["ip", "link", "add", "name", port, *ends])
        stack.callback(told, ["ip", "link", "delete", "dev", port])  # both ends go
    told(["ip", "link", "set", "dev", port, "master", bridge, "addrgenmode", "none", "up"])
    there = ["nsenter", "--target", str(pid), "--net"]
    told([*there, "ip", "address", "add", f"{spec.ip}/24", "dev", "eth0"])
    told([*there, "ip", "link", "set", "dev", "eth0", "addrgenmode", "none", "up"])
    told([*there, "tc", "qdisc", "add", "dev", "eth0", "root", *shaper(spec.rate_mbit)])
    told(["tc", "qdisc", "add", "dev", port, "root", *shaper(spec.rate_mbit)])


def shaper(rate_mbit: float) -> list[str]:
    """Return what tc is told; without a rate a plain queue, which counts as well."""
    if not rate_mbit:
        return ["pfifo", "limit", "10000"]
    rate = ["tbf", "rate", f"{round(rate_mbit * 1e6)}bit"]
    return [*rate, "burst", str(BURST), "limit", str(BURST + QUEUE)]


def _forward(spec: HostSpec, pid: int, port: str, stack: ExitStack) -> None:
    """Make a link whose packets pass a program that delays them; its devices go with it."""
    far = f"far-{port}"
    forwarder = subprocess.Popen(
        [sys.executable, str(FORWARDER), port, far, str(spec.delay_ms)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    stack.callback(forwarder.communicate)
    stack.callback(forwarder.kill)
    assert forwarder.stdout is not None
    if forwarder.stdout.readline() != "ready\n":
        raise ConnectError(
            "a link with a delay cannot be made: it needs /dev/net/tun; set delay_ms = 0",
            host=spec.name,
        )
    told(["ip", "link", "set", "dev", far, "netns", str(pid), "name", "eth0"])


def told(words: Sequence[str]) -> None:
    """Run a program that changes the laboratory.

    Raises:
        ConnectError: it failed; its words are in the error.
    """
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ConnectError(
            f"the laboratory cannot be made: {done.stderr.strip()}", command=" ".join(words)
        )

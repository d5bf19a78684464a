"""What each host has used: bytes and packets of its link, processor time of its processes.

The shaper counts what it lets through, segments one by one, with Ethernet headers; an
interface would count a packet of 64 KiB before segmentation as one. One ``tc`` for each
network namespace answers all questions, because starting programs would take processor time.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import psutil

from lab.hosts import Host
from lab.links import uplink
from lab.spec import Island
from smbox.errors import ConnectError


@dataclass(frozen=True, slots=True)
class Use:
    """Of one host since it stands: link, and processor seconds of its processes."""

    in_bytes: int = 0
    in_packets: int = 0
    out_bytes: int = 0
    out_packets: int = 0
    drops: int = 0
    cpu_s: float = 0.0


class Shapers:
    """Asks about the shapers of one network namespace.

    Args:
        enter: words that run a program there.
    """

    def __init__(self, enter: Sequence[str]) -> None:
        self._tc = subprocess.Popen(
            [*enter, "tc", "-statistics", "-json", "-batch", "-"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
            start_new_session=True,
        )

    def ask(self, device: str) -> tuple[int, int, int]:
        """Return bytes, packets and drops of the traffic that left by a device.

        Raises:
            ConnectError: tc has ended.
        """
        assert self._tc.stdin is not None
        assert self._tc.stdout is not None
        self._tc.stdin.write(f"qdisc show dev {device}\n")
        line = self._tc.stdout.readline()
        if not line:
            raise ConnectError("tc answers no more", exit_code=self._tc.poll())
        (told,) = json.loads(line)
        return told["bytes"], told["packets"], told["drops"]

    def close(self) -> None:
        """End tc."""
        self._tc.communicate()


class Counters:
    """Counts of all hosts; a context manager.

    Args:
        hosts: that stand.
    """

    def __init__(self, hosts: Sequence[Host]) -> None:
        self._hosts = hosts
        self._stack = ExitStack()
        self._cpu_s: dict[str, dict[psutil.Process, float]] = {}
        self._switch = self._opened([])
        self._inside = [self._opened(self._network(host)) for host in hosts]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()

    def read(self) -> dict[str, Use]:
        """Return what each host has used so far, by name."""
        self._look()
        used = {}
        for host, inside in zip(self._hosts, self._inside, strict=True):
            to_host, from_host = self._switch.ask(host.port), inside.ask("eth0")
            cpu_s = sum(self._cpu_s.get(_network_of(host.pid), {}).values())
            used[host.spec.name] = Use(
                *to_host[:2], *from_host[:2], to_host[2] + from_host[2], cpu_s
            )
        return used

    def read_islands(self, islands: Sequence[Island]) -> dict[str, Use]:
        """Return what has passed the link of each island so far, by name; no processor time."""
        used = {}
        for number, island in enumerate(islands):
            out, into = (self._switch.ask(device) for device in uplink(number))
            used[island.name] = Use(*into[:2], *out[:2], into[2] + out[2])
        return used

    def _look(self) -> None:
        """Note the processor time of all processes, by network; the dead keep their last."""
        for found in psutil.process_iter():
            try:
                times = found.cpu_times()
                seen = self._cpu_s.setdefault(_network_of(found.pid), {})
            except (psutil.NoSuchProcess, OSError):  # it has ended
                continue
            seen[found] = times.user + times.system

    def _opened(self, enter: Sequence[str]) -> Shapers:
        shapers = Shapers(enter)
        self._stack.callback(shapers.close)
        return shapers

    @staticmethod
    def _network(host: Host) -> list[str]:
        return ["nsenter", "--target", str(host.pid), "--net"]


def _network_of(pid: int) -> str:
    return os.readlink(f"/proc/{pid}/ns/net")

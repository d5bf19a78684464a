"""What a laboratory needs: programs, namespaces, a shaper; and what of it is missing."""

from __future__ import annotations

import os
import shutil
import subprocess
from typing import Final

PROGRAMS: Final = {
    "unshare": "util-linux",
    "nsenter": "util-linux",
    "mount": "util-linux or mount",
    "taskset": "util-linux",
    "ip": "iproute2",
    "tc": "iproute2",
    "env": "coreutils",
}
"""Each program and the package that holds it on Debian."""

FLAGS: Final = ("--fork", "--kill-child", "--pid", "--mount-proc", "--net", "--uts", "--ipc")
"""Of unshare; without root a user namespace comes in front, where the kernel allows it."""

TRIAL: Final = """
set -e
mount -t tmpfs tmpfs /dev/shm
echo trial > /proc/sys/kernel/hostname
ip link add name switch type bridge
ip link add name port type veth peer name eth0
tc qdisc add dev port root tbf rate 1gbit burst 128kb limit 1mb
"""
TRIAL_S: Final = 20.0


def unshare() -> list[str]:
    """Return the words that run a program as process 1 of namespaces of its own."""
    user = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    return ["unshare", *user, *FLAGS]


def missing() -> str:
    """Say what the machine lacks and what to do; "" if nothing."""
    gone = {name: package for name, package in PROGRAMS.items() if shutil.which(name) is None}
    if gone:
        packages = ", ".join(sorted(set(gone.values())))
        return f"programs are missing: {', '.join(gone)}; install {packages}"
    done = subprocess.run(
        [*unshare(), "sh", "-c", TRIAL],
        capture_output=True,
        text=True,
        timeout=TRIAL_S,
        check=False,
    )
    if done.returncode == 0:
        return ""
    reason = (done.stderr.splitlines() or [f"exit code {done.returncode}"])[-1]
    return (
        "namespaces with a bridge, veth and tc's tbf cannot be made here"
        f" ({reason}): run as root, in a container with --privileged, or allow user"
        " namespaces (sysctl user.max_user_namespaces); the kernel needs veth, bridge"
        " and sch_tbf"
    )

"""The plan of a run in hosts of the laboratory, and their memory nodes without a run.

Memory nodes ask for keys unless the file says otherwise.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from lab.hosts import FROM_HOSTS, SHARED, Host
from smbox import keys
from smbox_torch.launching import hosts as described
from smbox_torch.launching.cluster import Plan
from smbox_torch.launching.serving import serving as started

PORT: Final = 7070
CLIENT: Final = "worker"
FOLDER: Final = "keys"


def plan(hosts: Sequence[Host], command: Sequence[str], *, has_keys: bool) -> Plan:
    """Describe a run of the workers in all hosts, and make the keys that it needs."""
    threads = (os.cpu_count() or 1) // max(1, sum(host.spec.workers for host in hosts))
    far = []
    for host in hosts:
        shared = {} if host.spec.cores else {"OMP_NUM_THREADS": str(max(1, threads))}
        far.append(
            described.Host(
                host.spec.name,
                host.spec.ip,
                workers=host.spec.workers,
                enter=tuple(host.enter()),
                memory=host.spec.memory,
                port=PORT,
                env=shared,
            )
        )
    if has_keys:
        keys.make_node_key(SHARED / FOLDER)
        keys.add_client(SHARED / FOLDER, keys.Authorised(CLIENT, keys.Role.ADMIN))
    folder = str(FROM_HOSTS / FOLDER) if has_keys else None
    key = str(FROM_HOSTS / FOLDER / f"{CLIENT}.key") if has_keys else None
    return Plan(command, hosts=far, keys=folder, key=key, insecure=not has_keys)


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
    if not places:
        yield {}
        return
    told = plan(places, (), has_keys=has_keys)
    with started(told, os.environ, lambda line: print(line, file=sys.stderr)) as stand:
        key = {} if told.key is None else {"SMBOX_KEY": told.key}
        yield {"SMBOX_ADDRESS": stand.address} | key

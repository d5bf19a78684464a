"""``smbox keygen``: keys for a memory node and for its clients."""

from __future__ import annotations

import datetime as dt
import shlex
from pathlib import Path
from typing import Annotated, Final

import typer

from smbox import keys
from smbox.errors import ConfigError

DAYS_MAX: Final = 365_000
"""A thousand years; Python's dates end with the year 9999."""


def keygen(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of the node's keys.")],
    client: Annotated[
        list[str] | None, typer.Option(help="Name of a client to create; may be repeated.")
    ] = None,
    role: Annotated[
        str, typer.Option(help="Role of these clients: read, write or admin.")
    ] = "write",
    prefix: Annotated[
        str, typer.Option(help="Allow only names with this prefix; default: all.")
    ] = "",
    days: Annotated[
        int | None, typer.Option(help="Days until their keys expire; default: never.")
    ] = None,
) -> None:
    """Make a node's key pair, unless DIR has one, and a key for each client.

    Start the node with ``memnode --bind tcp://HOST:PORT --keys DIR``. Copy DIR/NAME.key to the
    client's host, for example by scp, and connect with ``smbox.connect(address,
    key="NAME.key")`` or SMBOX_KEY. Role read: read regions; write: also change existing ones;
    admin: also create and free regions. Remove DIR/clients/NAME.toml to lock a client out: it
    cannot connect again, and the node refuses its existing connections within about two
    seconds.
    """
    if role.upper() not in keys.Role.__members__:
        raise ConfigError("a role must be read, write or admin", role=role)
    if days is not None and not 1 <= days <= DAYS_MAX:
        raise ConfigError(f"a key must be valid for 1 to {DAYS_MAX} days", days=days)
    expires = None if days is None else keys.today() + dt.timedelta(days=days)
    clients = [
        keys.Authorised(name, keys.Role[role.upper()], prefix, expires) for name in client or ()
    ]
    for each in clients:
        keys.check_client(each)
    if keys.make_node_key(folder):
        print(
            f"made the node's key in {folder}; start it with:"
            f" memnode --bind tcp://HOST:PORT --keys {shlex.quote(str(folder))}"
        )
    for each in clients:
        made = keys.add_client(folder, each)
        print(f"made {made} ({role}): copy this secret file to the client's host")
    if not clients:
        print("no client was created: to create one, pass --client NAME")

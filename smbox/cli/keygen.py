"""``smbox keygen``: keys for a memory node and for its clients."""

from __future__ import annotations

import datetime as dt
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Final, TypeVar

import typer

from smbox import keys
from smbox.errors import ConfigError

T = TypeVar("T")

DAYS_MAX: Final = 365_000
"""A thousand years; Python's dates end with the year 9999."""


def keygen(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of the node's keys.")],
    client: Annotated[
        list[str] | None, typer.Option(help="Name of a client to create; may be repeated.")
    ] = None,
    role: Annotated[
        list[str] | None,
        typer.Option(help="Role of all these clients: read, write (default) or admin."),
    ] = None,
    prefix: Annotated[
        list[str] | None,
        typer.Option(help="Allow only names with this prefix; default: all."),
    ] = None,
    days: Annotated[
        list[int] | None, typer.Option(help="Days until their keys expire; default: never.")
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
    one_role, one_prefix = _once("--role", role, "write"), _once("--prefix", prefix, "")
    if one_role.upper() not in keys.Role.__members__:
        raise ConfigError("a role must be read, write or admin", role=one_role)
    valid = _once("--days", days, None)
    if valid is not None and not 1 <= valid <= DAYS_MAX:
        raise ConfigError(f"a key must be valid for 1 to {DAYS_MAX} days", days=valid)
    expires = None if valid is None else keys.today() + dt.timedelta(days=valid)
    clients = [
        keys.Authorised(name, keys.Role[one_role.upper()], one_prefix, expires)
        for name in client or ()
    ]
    for place, each in enumerate(clients):
        keys.files_of(folder, each)
        if each in clients[:place]:
            raise ConfigError("two clients cannot have one name", name=each.name)
    if keys.make_node_key(folder):
        print(
            f"made the node's key in {folder}; start it with:"
            f" memnode --bind tcp://HOST:PORT --keys {shlex.quote(str(folder))}"
        )
    for each in clients:
        made = keys.add_client(folder, each)
        print(f"made {made} ({one_role}): copy this secret file to the client's host")
    if not clients:
        print("no client was created: to create one, pass --client NAME")


def _once(option: str, given: Sequence[T] | None, default: T) -> T:
    """Return the value of an option.

    Raises:
        ConfigError: it was given twice, as if for the client before it.
    """
    if given and len(given) > 1:
        raise ConfigError(
            f"{option} applies to all clients of the command: give it once, and run keygen"
            " again for other clients",
            given=given,
        )
    return given[0] if given else default

"""Key files of nodes that other hosts reach: who may do what, as CURVE keys in TOML files.

CURVE (RFC 26 of ZeroMQ) encrypts a connection and authenticates both ends. ``smbox keygen``
makes one folder for a node:

    DIR/node.toml            the node's own key pair; mode 0600
    DIR/clients/NAME.toml    an authorised client: its public key, role, prefix, expiry
    DIR/NAME.key             to be moved to the client: its key pair, the node's public key

A folder is read, never a single list: adding or removing a file is adding or removing a client.
"""

from __future__ import annotations

import datetime as dt
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Final, Literal, TypeVar, cast

import msgspec
import zmq

from smbox import toml
from smbox.errors import ConfigError

NODE_FILE: Final = "node.toml"
CLIENTS: Final = "clients"
SECRET_MODE: Final = 0o600
FILE_NBYTES_MAX: Final = 64 * 1024  # of a key file, which takes some hundred bytes

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


class Role(IntEnum):
    """What a client may do; each role includes those before it."""

    READ = 1  # read regions, wait for them, list them
    WRITE = 2  # change what exists
    ADMIN = 3  # create and free


RoleName = Literal["read", "write", "admin"]


class KeyPair(msgspec.Struct, frozen=True):
    """A CURVE key pair, both parts in Z85."""

    public: str
    secret: str


class ClientKey(KeyPair, frozen=True, kw_only=True):
    """The file that a client connects with.

    Attributes:
        name: of the client.
        node: public key of its node, by which it knows it.
        expires: the first day on which it is refused; None: never.
    """

    name: str
    node: str
    expires: dt.date | None = None


class _Listed(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The file of an authorised client; a misspelt prefix would limit nothing."""

    public: str
    role: RoleName
    prefix: str = ""
    expires: dt.date | None = None


Form = TypeVar("Form", bound=msgspec.Struct)
Pair = TypeVar("Pair", bound=KeyPair)


@dataclass(frozen=True, slots=True)
class Authorised:
    """A client as its node knows it.

    Attributes:
        name: of its file.
        role: what it may do.
        prefix: of the names of regions, counters and barriers that it may use; "" for all.
        expires: the first day on which it is refused; None: never.
    """

    name: str
    role: Role
    prefix: str = ""
    expires: dt.date | None = None

    def is_valid(self, today: dt.date) -> bool:
        """Return whether the key has not expired."""
        return self.expires is None or today < self.expires


def today() -> dt.date:
    """Return the date in UTC, by which keys expire."""
    return dt.datetime.now(dt.UTC).date()


def make_node_key(folder: Path) -> bool:
    """Make a node's key pair unless the folder has one; return whether it was made.

    Raises:
        ConfigError: the folder cannot be made or written to; no key was made.
    """
    with _writing(folder):
        if (folder / NODE_FILE).exists():
            return False
        (folder / CLIENTS).mkdir(parents=True, exist_ok=True)
        text = _text("the key pair of a memory node: keep it secret", KeyPair(*_new_pair()))
        _write_secret(folder / NODE_FILE, text)
    return True


def check_client(client: Authorised) -> None:
    """Raise ConfigError if a client's name cannot be a file's, or its prefix be written."""
    if _NAME.fullmatch(client.name) is None:
        raise ConfigError(
            "a client's name is 1 to 64 of A-Z a-z 0-9 . _ - and begins with a letter or digit",
            name=client.name,
        )
    if any(not each.isprintable() or each in "\"'\\" for each in client.prefix):
        raise ConfigError("a prefix is printable, without quotes", prefix=client.prefix)


def add_client(folder: Path, client: Authorised) -> Path:
    """Make a client's key pair and authorise it; return the file to move to the client.

    Raises:
        ConfigError: a client of this name exists, the name cannot be a file's, or the folder
            cannot be written to; nothing was written.
    """
    check_client(client)
    node, (public, secret) = read_node_key(folder), _new_pair()
    known, handed = folder / CLIENTS / f"{client.name}.toml", folder / f"{client.name}.key"
    if known.exists() or handed.exists():
        raise ConfigError(
            "a client of this name exists: remove its files first, or take another name",
            file=str(known if known.exists() else handed),
        )
    key = ClientKey(public, secret, name=client.name, node=node.public, expires=client.expires)
    role = cast("RoleName", client.role.name.lower())
    listed = _Listed(public, role, client.prefix, client.expires)
    with _writing(folder):
        _write_secret(handed, _text("the key of an smbox client: keep it secret", key))
        try:
            text = _text("an authorised client; without this file it is refused", listed)
            known.write_text(text)
        except BaseException:
            handed.unlink()  # it would keep its name from another attempt
            raise
    return handed


def _new_pair() -> tuple[str, str]:
    public, secret = zmq.curve_keypair()
    return public.decode(), secret.decode()


def _text(comment: str, told: msgspec.Struct) -> str:
    """Return the TOML that ``_read`` reads again: of strings without quotes, and of dates."""
    values = msgspec.structs.asdict(told).items()
    lines = [
        f"{name} = {value.isoformat()}" if isinstance(value, dt.date) else f'{name} = "{value}"'
        for name, value in values
        if value is not None
    ]
    return "\n".join([f"# {comment}", *lines, ""])


@contextmanager
def _writing(folder: Path) -> Iterator[None]:
    """Raise ConfigError where the files of a folder cannot be written."""
    try:
        yield
    except OSError as error:
        raise ConfigError(
            f"no keys can be written there: {error.strerror}; name a folder that you may write",
            folder=str(folder),
            file=error.filename,
        ) from error


def _write_secret(path: Path, text: str) -> None:
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, SECRET_MODE)
    with os.fdopen(file, "w") as out:
        out.write(text)


def read_client_key(path: str | Path) -> ClientKey:
    """Read the file that a client connects with.

    Raises:
        ConfigError: it is missing, open to others, no key, or expired.
    """
    told = _read_pair(Path(path), ClientKey)
    _check_key("node", told.node, path)
    if told.expires is not None and today() >= told.expires:
        raise ConfigError(
            "this key has expired: ask whoever runs the node for a new one",
            key=str(path),
            expires=told.expires.isoformat(),
        )
    return told


def read_node_key(folder: Path) -> KeyPair:
    """Read a node's own key pair.

    Raises:
        ConfigError: it is missing, open to others, or no key pair.
    """
    return _read_pair(folder / NODE_FILE, KeyPair)


def read_clients(folder: Path) -> tuple[dict[str, Authorised], list[ConfigError]]:
    """Read who is authorised, by public key, and what is wrong with the other files."""
    found: dict[str, Authorised] = {}
    errors: list[ConfigError] = []
    for path in sorted((folder / CLIENTS).glob("*.toml")):
        try:
            told = _read(path, _Listed)
            _check_key("public", told.public, path)
        except ConfigError as error:
            errors.append(error)
            continue
        if told.public in found:
            errors.append(ConfigError("two clients have this key", key=str(path)))
        client = Authorised(path.stem, Role[told.role.upper()], told.prefix, told.expires)
        found.setdefault(told.public, client)
    return found, errors


def _read_pair(path: Path, form: type[Pair]) -> Pair:
    told = _read(path, form, is_secret=True)
    _check_key("public", told.public, path)
    _check_key("secret", told.secret, path)
    if zmq.curve_public(told.secret.encode()).decode() != told.public:
        raise ConfigError("public and secret key are no pair", key=str(path))
    return told


def _read(path: Path, form: type[Form], *, is_secret: bool = False) -> Form:
    try:
        with open(path, "rb", opener=_open_at_once) as file:
            mode = os.fstat(file.fileno()).st_mode
            text = file.read(FILE_NBYTES_MAX) if stat.S_ISREG(mode) else b""
    except OSError as error:
        raise ConfigError(
            f"the key cannot be read: {error.strerror}; `smbox keygen` makes keys",
            key=str(path),
        ) from error
    if not stat.S_ISREG(mode):
        raise ConfigError("this is no key file, but one of another kind", key=str(path))
    if is_secret and mode & 0o077:
        raise ConfigError(
            f"others may read this key: chmod 600 {path}",
            key=str(path),
            mode=f"{mode & 0o777:o}",
        )
    return toml.decode(text, form, "this is no key file", key=str(path))


def _open_at_once(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)  # a pipe would wait for a writer


def _check_key(name: str, value: str, path: str | Path) -> None:
    try:
        zmq.curve_public(value.encode())  # any 32 bytes are a key; this checks the encoding
    except (zmq.ZMQError, ValueError) as error:
        raise ConfigError(f"{name} is no key of 40 characters", key=str(path)) from error

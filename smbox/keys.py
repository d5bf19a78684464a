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
from typing import Final, Literal, TypeVar

import msgspec
import zmq

from smbox import toml
from smbox.errors import ConfigError

NODE_FILE: Final = "node.toml"
CLIENTS: Final = "clients"
KEY_LENGTH: Final = 40  # Z85 of 32 bytes
SECRET_MODE: Final = 0o600
FILE_NBYTES_MAX: Final = 64 * 1024  # of a key file, which takes some hundred bytes

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


Form = TypeVar("Form", bound=msgspec.Struct)


class Role(IntEnum):
    """What a client may do; each role includes those before it."""

    READ = 1  # read regions, wait for them, list them
    WRITE = 2  # change what exists
    ADMIN = 3  # create and free


class KeyPair(msgspec.Struct, frozen=True):
    """A CURVE key pair, both parts in Z85."""

    public: str
    secret: str


class _Handed(KeyPair, frozen=True, kw_only=True):
    """The file that a client connects with."""

    name: str
    node: str
    expires: dt.date | None = None


class _Listed(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The file of an authorised client; a misspelt prefix would limit nothing."""

    public: str
    role: Literal["read", "write", "admin"]
    prefix: str = ""
    expires: dt.date | None = None


@dataclass(frozen=True, slots=True)
class ClientKey:
    """What a client shows, and the key by which it knows its node; all in Z85."""

    name: str
    pair: KeyPair
    node: str


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
        """Tell whether the key has not expired."""
        return self.expires is None or today < self.expires


def today() -> dt.date:
    """Return the date in UTC, by which keys expire."""
    return dt.datetime.now(dt.UTC).date()


def make_node_key(folder: Path) -> bool:
    """Make a node's key pair unless the folder has one; tell whether it was made.

    Raises:
        ConfigError: the folder cannot be made or written to; no key was made.
    """
    pair = _new_pair()
    text = f'# the key pair of a memory node: keep it secret\npublic = "{pair.public}"\n'
    with _writing(folder):
        if (folder / NODE_FILE).exists():
            return False
        (folder / CLIENTS).mkdir(parents=True, exist_ok=True)
        _write_secret(folder / NODE_FILE, f'{text}secret = "{pair.secret}"\n')
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
    node, pair = read_node_key(folder), _new_pair()
    known, handed = folder / CLIENTS / f"{client.name}.toml", folder / f"{client.name}.key"
    if known.exists() or handed.exists():
        raise ConfigError(
            "a client of this name exists: remove its files first, or take another name",
            file=str(known if known.exists() else handed),
        )
    expires = "" if client.expires is None else f"expires = {client.expires.isoformat()}\n"
    secret = (
        f'# the key of an smbox client: keep it secret\nname = "{client.name}"\n'
        f'public = "{pair.public}"\nsecret = "{pair.secret}"\n'
        f'node = "{node.public}"\n{expires}'
    )
    authorised = (
        f'# an authorised client; without this file it is refused\npublic = "{pair.public}"\n'
        f'role = "{client.role.name.lower()}"\nprefix = "{client.prefix}"\n{expires}'
    )
    with _writing(folder):
        _write_secret(handed, secret)
        try:
            known.write_text(authorised)
        except BaseException:
            handed.unlink()  # it would keep its name from another attempt
            raise
    return handed


def _new_pair() -> KeyPair:
    public, secret = zmq.curve_keypair()
    return KeyPair(public.decode(), secret.decode())


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
    told = _read(Path(path), _Handed, is_secret=True)
    _check_key("node", told.node, path)
    if told.expires is not None and today() >= told.expires:
        raise ConfigError(
            "this key has expired: ask whoever runs the node for a new one",
            key=str(path),
            expires=told.expires.isoformat(),
        )
    return ClientKey(told.name, _pair(told, path), told.node)


def read_node_key(folder: Path) -> KeyPair:
    """Read a node's own key pair.

    Raises:
        ConfigError: it is missing, open to others, or no key pair.
    """
    path = folder / NODE_FILE
    return _pair(_read(path, KeyPair, is_secret=True), path)


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


def _read(path: Path, form: type[Form], *, is_secret: bool = False) -> Form:
    try:
        with open(path, "rb", opener=_open_at_once) as file:
            _check_mode(path, os.fstat(file.fileno()).st_mode, is_secret=is_secret)
            found = file.read(FILE_NBYTES_MAX)
    except OSError as error:
        raise ConfigError(
            f"the key cannot be read: {error.strerror}; `smbox keygen` makes keys",
            key=str(path),
        ) from error
    return toml.decode(found, form, "this is no key file", key=str(path))


def _open_at_once(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)  # a pipe would wait for a writer


def _check_mode(path: Path, mode: int, *, is_secret: bool) -> None:
    if not stat.S_ISREG(mode):
        raise ConfigError("this is no key file, but one of another kind", key=str(path))
    if is_secret and mode & 0o077:
        raise ConfigError(
            f"others may read this key: chmod 600 {path}",
            key=str(path),
            mode=f"{mode & 0o777:o}",
        )


def _check_key(name: str, value: str, path: str | Path) -> None:
    try:
        zmq.curve_public(value.encode())  # any 32 bytes are a key; this checks the encoding
    except (zmq.ZMQError, ValueError) as error:
        raise ConfigError(
            f"{name} is no key of {KEY_LENGTH} characters", key=str(path)
        ) from error


def _pair(told: KeyPair, path: str | Path) -> KeyPair:
    _check_key("public", told.public, path)
    _check_key("secret", told.secret, path)
    if zmq.curve_public(told.secret.encode()).decode() != told.public:
        raise ConfigError("public and secret key are no pair", key=str(path))
    return KeyPair(told.public, told.secret)

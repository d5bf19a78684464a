"""Key files: CURVE keys and roles of the clients of a node that other hosts can reach.

CURVE (RFC 26 of ZeroMQ) encrypts a connection and authenticates both ends. ``smbox keygen``
makes one folder for a node, with TOML files:

    DIR/node.toml            key pair of the node; mode 0600
    DIR/clients/NAME.toml    an authorised client: public key, role, prefix, expiry date
    DIR/NAME.key             file to move to the client: its key pair, the node's public key

To add or remove a client, add or remove its file.
"""

from __future__ import annotations

import datetime as dt
import os
import re
import shlex
import stat
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from enum import IntEnum
from pathlib import Path
from typing import Final, Literal, TypeVar, cast

import msgspec
import zmq

from smbox import toml
from smbox.errors import ConfigError
from smbox.limits import is_limit, refusal

NODE_FILE: Final = "node.toml"
CLIENTS: Final = "clients"
SECRET_MODE: Final = 0o600
LISTED_MODE: Final = 0o644

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


class Role(IntEnum):
    """The permissions of a client; each role includes those before it."""

    READ = 1  # read, list and wait for regions
    WRITE = 2  # change regions that exist
    ADMIN = 3  # create and free regions


RoleName = Literal["read", "write", "admin"]


class KeyPair(msgspec.Struct, frozen=True):
    """A CURVE key pair, both parts in Z85."""

    public: str
    secret: str


class ClientKey(KeyPair, frozen=True, kw_only=True):
    """The key file of a client.

    Attributes:
        name: name of the client.
        node: public key of its node, by which the client authenticates the node.
        expires: first day on which the node refuses the key; None: never.
    """

    name: str
    node: str
    expires: dt.date | None = None


class _Listed(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The file of an authorised client. Unknown names are errors, such as a misspelt prefix."""

    public: str
    role: RoleName
    prefix: str = ""
    expires: dt.date | None = None


Form = TypeVar("Form", bound=msgspec.Struct)
Pair = TypeVar("Pair", bound=KeyPair)


class Authorised(msgspec.Struct, frozen=True):
    """An authorised client, as known to its node.

    Attributes:
        name: name of its file.
        role: its permissions.
        prefix: it may use regions, counters and barriers whose names have this prefix; "": all.
        expires: first day on which the node refuses it; None: never.
    """

    name: str
    role: Role
    prefix: str = ""
    expires: dt.date | None = None

    def is_valid(self, today: dt.date) -> bool:
        """Return True if the key has not expired."""
        return self.expires is None or today < self.expires


def today() -> dt.date:
    """Return the date in UTC, on which the expiry of keys is based."""
    return dt.datetime.now(dt.UTC).date()


def make_node_key(folder: Path) -> bool:
    """Make a node's key pair unless the folder has one; return True if it was made.

    Raises:
        ConfigError: the folder cannot be created or written to; no key was made.
    """
    with _writing(folder) as undo:
        if (folder / NODE_FILE).exists():
            return False
        (folder / CLIENTS).mkdir(parents=True, exist_ok=True)
        text = _text("the key pair of a memory node: keep it secret", KeyPair(*_new_pair()))
        _write(folder / NODE_FILE, text, SECRET_MODE, undo)
    return True


def files_of(folder: Path, client: Authorised) -> tuple[Path, Path]:
    """Return where a new client's entry and key belong; ConfigError if it cannot be made."""
    if _NAME.fullmatch(client.name) is None:
        raise ConfigError(
            "a client's name is 1 to 64 of A-Z a-z 0-9 . _ - and begins with a letter or digit",
            name=client.name,
        )
    if any(not each.isprintable() or each in "\"'\\" for each in client.prefix):
        raise ConfigError("a prefix must be printable, without quotes", prefix=client.prefix)
    files = folder / CLIENTS / f"{client.name}.toml", folder / f"{client.name}.key"
    if found := next(filter(os.path.lexists, files), None):
        raise ConfigError(
            "a client of this name exists: remove its files first, or take another name",
            file=str(found),
        )
    return files


def add_client(folder: Path, client: Authorised) -> Path:
    """Make a client's key pair and authorise it; return the file to move to the client.

    Raises:
        ConfigError: a client of this name exists, the name or prefix is invalid, or the folder
            cannot be written to; nothing was written.
    """
    entry, key_file = files_of(folder, client)
    node, (public, secret) = read_node_key(folder), _new_pair()
    key = ClientKey(public, secret, name=client.name, node=node.public, expires=client.expires)
    role = cast("RoleName", client.role.name.lower())
    listed = _Listed(public, role, client.prefix, client.expires)
    with _writing(folder) as undo:
        text = _text("the key of an smbox client: keep it secret", key)
        _write(key_file, text, SECRET_MODE, undo)
        text = _text("an authorised client; without this file it is refused", listed)
        _write(entry, text, LISTED_MODE, undo)
    return key_file


def _new_pair() -> tuple[str, str]:
    public, secret = zmq.curve_keypair()
    return public.decode(), secret.decode()


def _text(comment: str, values: msgspec.Struct) -> str:
    """Return the TOML text of a struct of dates and of strings without quotes."""
    lines = [
        f"{name} = {value.isoformat()}" if isinstance(value, dt.date) else f'{name} = "{value}"'
        for name, value in msgspec.structs.asdict(values).items()
        if value is not None
    ]
    return "\n".join([f"# {comment}", *lines, ""])


@contextmanager
def _writing(folder: Path) -> Iterator[ExitStack]:
    """Turn an OSError of the block into a ConfigError; remove what ``_write`` wrote in it."""
    with ExitStack() as undo:
        try:
            yield undo
        except OSError as error:
            raise ConfigError(
                f"cannot write keys: {error.strerror}; name a folder that you may write to",
                folder=str(folder),
                file=error.filename,
            ) from error
        undo.pop_all()


def _write(path: Path, text: str, mode: int, undo: ExitStack) -> None:
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    undo.callback(path.unlink)  # else the next attempt would find that the key exists
    with os.fdopen(file, "w", encoding="utf-8") as out:
        out.write(text)


def read_client_key(path: str | Path) -> ClientKey:
    """Read the key file of a client.

    Raises:
        ConfigError: it is missing, readable by other users, not a key file, or expired.
    """
    key = _read_pair(Path(path), ClientKey)
    _check_key("node", key.node, path)
    if key.expires is not None and today() >= key.expires:
        raise ConfigError(
            "this key has expired: ask the administrator of the node for a new one",
            key=str(path),
            expires=key.expires.isoformat(),
        )
    return key


def read_node_key(folder: Path) -> KeyPair:
    """Read the key pair of a node.

    Raises:
        ConfigError: it is missing, readable by other users, or not a key pair.
    """
    return _read_pair(folder / NODE_FILE, KeyPair)


def client_files(folder: Path) -> list[Path]:
    """Return the files of the authorised clients, by name; raises as ``read_clients``."""
    clients = folder / CLIENTS
    try:
        names = os.listdir(clients)  # newer versions of glob return nothing where it fails
    except FileNotFoundError:
        return []
    return [clients / name for name in sorted(names) if name.endswith(".toml")]


def read_clients(folder: Path) -> tuple[dict[str, Authorised], list[ConfigError]]:
    """Read the authorised clients, by public key, and the errors of invalid files.

    A file that any user may change authorises nobody.

    Raises:
        OSError: the folder or a file cannot be read because of a limit of the system.
    """
    found: dict[str, Authorised] = {}
    errors: list[ConfigError] = []
    for path in client_files(folder):
        try:
            entry = _read(path, _Listed)
            _check_key("public", entry.public, path)
        except ConfigError as error:
            errors.append(error)
            continue
        if entry.public in found:
            errors.append(ConfigError("another client has the same key", key=str(path)))
        client = Authorised(path.stem, Role[entry.role.upper()], entry.prefix, entry.expires)
        found.setdefault(entry.public, client)
    return found, errors


def _read_pair(path: Path, form: type[Pair]) -> Pair:
    pair = _read(path, form, is_secret=True)
    _check_key("public", pair.public, path)
    _check_key("secret", pair.secret, path)
    if zmq.curve_public(pair.secret.encode()).decode() != pair.public:
        raise ConfigError("public and secret key are not a pair", key=str(path))
    return pair


def _read(path: Path, form: type[Form], *, is_secret: bool = False) -> Form:
    try:
        with open(path, "rb", opener=_open_nonblocking) as file:
            mode = os.fstat(file.fileno()).st_mode
            text = file.read(toml.FILE_NBYTES_MAX) if stat.S_ISREG(mode) else b""
    except OSError as error:
        if is_limit(error):
            raise refusal("read the key", error) from error
        raise ConfigError(
            f"cannot read the key: {error.strerror}; `smbox keygen` makes keys",
            key=str(path),
        ) from error
    if not stat.S_ISREG(mode):
        raise ConfigError("the key is not a regular file", key=str(path))
    if excess := mode & (0o077 if is_secret else 0o002):
        step = f"run chmod {mode & 0o777 & ~excess:o} {shlex.quote(str(path))}"
        raise ConfigError(
            f"other users may read or change this file: {step}", mode=f"{mode & 0o777:o}"
        )
    return toml.decode(text, form, "this is not a key file", key=str(path))


def _open_nonblocking(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)  # opening a pipe would wait for a writer


def _check_key(name: str, value: str, path: str | Path) -> None:
    try:
        zmq.curve_public(value.encode())  # checks the encoding; any 32 bytes are a valid key
    except (zmq.ZMQError, ValueError) as error:
        raise ConfigError(f"{name} is not a key of 40 characters", key=str(path)) from error

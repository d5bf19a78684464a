"""Authorisation of clients that have a key: a folder of key files, and ZeroMQ's ZAP handler.

Roles apply to clients that have a key. A client that proved by the cookie that it shares host
and user may do everything, and so may every client of a node with ``--insecure``.

ZeroMQ asks by ZAP (its RFC 27) whether a client's CURVE key is authorised: once for each
handshake, after the client has proved that it owns the key. A refused client costs one answer
and no memory. Handshakes of unknown keys beyond a rate are deferred: ZeroMQ retries them.
Authorised clients are never deferred, so that unknown clients cannot keep them out.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import zmq
from zmq.utils import z85

from memnode.registry import Registry
from smbox.errors import AccessDeniedError
from smbox.keys import CLIENTS, Authorised, Role, client_files, read_clients, today
from smbox.memory.channels import ChannelKey
from smbox.wire import operands
from smbox.wire.codec import Request
from smbox.wire.messages import Attach, Create, Free, Publish
from smbox.wire.ops import CHANGES, Op, carried_nbytes

NEEDED: Final[dict[Op, Role]] = (
    dict.fromkeys(Op, Role.READ)
    | dict.fromkeys(CHANGES, Role.WRITE)
    | dict.fromkeys((Op.CREATE, Op.PUBLISH, Op.FREE), Role.ADMIN)
)

ZAP_ENDPOINT: Final = "inproc://zeromq.zap.01"
ZAP_DOMAIN: Final = b"smbox"
ZAP_VERSION: Final = b"1.0"

STRANGERS_RATE: Final = 200.0
"""Average number of handshakes of unknown keys that are answered in a second."""

STRANGERS_BURST: Final = 1000.0
"""Most of them at once: a large run may start before its keys are in the folder."""

REFUSED_LOG_S: Final = 10.0
"""Minimum interval of log messages about refused handshakes, in seconds."""

_LOG = logging.getLogger(__name__)


class Access:
    """The authorised clients of a node.

    Args:
        folder: of keys (smbox/keys.py); None: no client has a key.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._clients: dict[str, Authorised] = {}
        self._seen: dict[str, object] | None = None
        self.refresh()

    def refresh(self) -> None:
        """Read the folder again if one of its files was changed, added or removed.

        If a limit of the system prevents that, only clients whose file is unchanged stay
        authorised until a later call.
        """
        if self._folder is None:
            return
        try:
            seen = {path.name: _file_state(path) for path in client_files(self._folder)}
            if seen == self._seen:
                return
            self._clients, errors = read_clients(self._folder)
        except OSError as limit:
            if self._seen is None:
                raise
            _LOG.error("cannot read the key folder: %s", limit)
            known = self._clients.items()
            self._clients = {key: each for key, each in known if self._is_unchanged(each)}
            return
        self._seen = seen
        for error in errors:
            _LOG.warning("ignored a file of the key folder: %s", error)
        _LOG.info("%d clients are authorised", len(self._clients))

    def find(self, user: str) -> Authorised | None:
        """Return the client with this public key, if it is authorised today."""
        client = self._clients.get(user)
        return client if client is not None and client.is_valid(today()) else None

    def find_now(self, user: str) -> Authorised | None:
        """Return the client with this public key, after a check whether its file has changed.

        No file is checked for a key that was not authorised before.
        """
        client = self._clients.get(user)
        if client is not None and not self._is_unchanged(client):
            self.refresh()
        return self.find(user)

    def _is_unchanged(self, client: Authorised) -> bool:
        """Return whether the file of a client is as it was read; opens no file."""
        assert self._folder is not None
        assert self._seen is not None
        file = self._folder / CLIENTS / f"{client.name}.toml"
        return self._seen.get(file.name) == _file_state(file)

    def can_see(self, user: str, name: str) -> bool:
        """Return whether a client may see a region of this name; "": a client without a key."""
        client = self.find(user)
        return not user if client is None else name.startswith(client.prefix)

    def check(self, registry: Registry, key: ChannelKey, user: str, request: Request) -> None:
        """Check that a client may execute a request.

        Args:
            registry: of the regions.
            key: client id and channel; a client may do anything with its own unpublished
                regions.
            user: its public key.
            request: the request.

        Raises:
            AccessDeniedError: it may not; nothing was done.
        """
        client = self.find(user)
        if client is None:
            raise AccessDeniedError("this client's key is not authorised any more")
        for name in _names(registry, key, request):
            if not name.startswith(client.prefix):
                raise AccessDeniedError(
                    "this key is for names of another prefix",
                    client=client.name,
                    name=name,
                    prefix=client.prefix,
                )
        needed = _needed(registry, key, request)
        if client.role < needed:
            raise AccessDeniedError(
                f"this needs the role {needed.name.lower()}",
                client=client.name,
                role=client.role.name.lower(),
                op=request.op.name,
            )


def _needed(registry: Registry, key: ChannelKey, request: Request) -> Role:
    """Return the role that a request needs; to free its own unpublished regions, only READ."""
    needed = NEEDED[request.op]
    body = request.body
    if isinstance(body, Create):
        exists = body.exist_ok and registry.find(body.kind, body.name) is not None
        return Role.READ if exists else needed
    if isinstance(body, Free):
        is_own = body.address is None or registry.owns(body.address, key[0])
        return Role.READ if is_own and not body.published else needed
    return needed


def _names(registry: Registry, key: ChannelKey, request: Request) -> Iterator[str]:
    """Yield the names of the regions of a request, except the client's unpublished ones.

    Raises:
        SmboxError: the request is malformed, or names an unknown region.
    """
    body = request.body
    if isinstance(body, Create) or (isinstance(body, Attach) and body.address is None):
        yield body.name
    else:
        for address in _addresses(request):
            if isinstance(body, Publish) or not registry.owns(address, key[0]):
                yield registry.locate(address).spec.name


def _addresses(request: Request) -> Iterator[int]:
    body = request.body
    if isinstance(body, Attach | Publish | Free):
        if body.address is not None:
            yield body.address
    elif request.op is Op.BATCH:
        yield from (item.address for item in request.items)
    elif body is None:  # PING, LIST and STATS have a body and name no region
        yield request.address
        if request.op in (Op.FROM, Op.DOT):
            yield operands.unpack_address(request.payload)
        elif request.op is Op.UPDATE:
            nbytes = carried_nbytes(request.nbytes, request.operand)
            yield from operands.unpack_update(request.payload, nbytes).siblings


def _file_state(path: Path) -> object:
    """Return the state of a file, which changes with the file."""
    try:
        stat = path.stat()
    except OSError as error:  # just removed, or a dangling link
        return error.errno
    return stat.st_mtime_ns, stat.st_size, stat.st_ino


class ZapHandler:
    """Answers ZeroMQ's ZAP requests; the server polls ``socket`` and calls ``answer``.

    Args:
        context: of the listeners; create the handler before them.
        access: the authorised clients.
        now_s: monotonic seconds.
    """

    def __init__(
        self, context: zmq.Context[zmq.Socket[bytes]], access: Access, now_s: float
    ) -> None:
        self._access = access
        self._allowed, self._filled_s = STRANGERS_BURST, now_s
        self._refused, self._logged_s = 0, now_s - REFUSED_LOG_S
        self.socket = context.socket(zmq.REP)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.bind(ZAP_ENDPOINT)

    def answer(self, now_s: float) -> None:
        """Answer one ZAP request."""
        try:
            asked = self.socket.recv_multipart(zmq.NOBLOCK)
        except zmq.Again:
            return
        self.socket.send_multipart([ZAP_VERSION, asked[1], *self._judge(asked, now_s), b""])

    def _judge(self, asked: list[bytes], now_s: float) -> tuple[bytes, bytes, bytes]:
        """Return status code, status text and user id of the answer.

        Args:
            asked: version, request id, domain, address, identity, mechanism, credentials.
            now_s: monotonic seconds.
        """
        is_curve = asked[5] == b"CURVE" and len(asked[6]) == 32
        user = z85.encode(asked[6]) if is_curve else b""
        if is_curve and self._access.find_now(user.decode()) is not None:
            return b"200", b"", user
        self._allowed = min(
            STRANGERS_BURST, self._allowed + STRANGERS_RATE * (now_s - self._filled_s)
        )
        self._filled_s = now_s
        if self._allowed < 1:
            return b"300", b"too many handshakes: later", b""
        self._allowed -= 1
        self._refused += 1
        if now_s - self._logged_s >= REFUSED_LOG_S:
            address = asked[3].decode(errors="replace")
            _LOG.warning("refused %d handshakes, the last from %s", self._refused, address)
            self._refused, self._logged_s = 0, now_s
        return b"400", b"this key is not authorised", b""

    def close(self) -> None:
        """Close the socket."""
        self.socket.close(linger=0)

"""Who may connect from other hosts, and what each may do: a folder of key files, read again.

Roles bind clients that came with a key. One that proved to share host and user by the cookie
may do what the user may do, and so may everybody where the node was told to be insecure.

ZeroMQ asks by ZAP (its RFC 27) whether a client's CURVE key is authorised: once for each
handshake, after the key has been proven. Whoever is refused costs an answer and no memory.
Handshakes of strangers beyond a rate are put off: their ZeroMQ tries again. Authorised clients
are always let in, or strangers could keep them out.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Final, cast

import zmq
from zmq.utils import z85

from memnode.registry import Registry
from smbox.errors import AccessDeniedError
from smbox.keys import CLIENTS, Authorised, Role, read_clients, today
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
ZAP_FRAMES: Final = 7  # version, request id, domain, address, identity, mechanism, credentials

STRANGERS_RATE: Final = 200.0
"""Handshakes of strangers a second that are answered on average."""

STRANGERS_BURST: Final = 1000.0
"""And at once: a large run may start before its keys are in the folder."""

REFUSED_NOTE_S: Final = 10.0
"""The log tells of refusals at most so often."""

_LOG = logging.getLogger(__name__)


class Access:
    """The authorised clients of a node.

    Args:
        folder: of keys (smbox/keys.py); None: nobody comes with a key.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._clients: dict[str, Authorised] = {}
        self._seen: dict[str, object] | None = None
        self.refresh()

    def refresh(self) -> None:
        """Read the folder again if a file of it was changed, added or removed."""
        if self._folder is None or (seen := _state(self._folder)) == self._seen:
            return
        self._seen = seen
        self._clients, errors = read_clients(self._folder)
        for error in errors:
            _LOG.warning("a file of the key folder authorises nobody: %s", error)
        _LOG.info("%d clients are authorised", len(self._clients))

    def find(self, user: str) -> Authorised | None:
        """Return the client with this public key, if it is authorised today."""
        client = self._clients.get(user)
        return client if client is not None and client.is_valid(today()) else None

    def find_now(self, user: str) -> Authorised | None:
        """Return the client with this public key as its file is now; it costs a look at it.

        Keys that were not authorised before are not: strangers cost no look.
        """
        client = self._clients.get(user)
        if client is not None and self._folder is not None and self._seen is not None:
            file = self._folder / CLIENTS / f"{client.name}.toml"
            if self._seen.get(file.name) != _file_state(file):
                self.refresh()
        return self.find(user)

    def sees(self, user: str, name: str) -> bool:
        """Tell whether a client may know of a region of this name; "" is no key's client."""
        if not user:
            return True
        client = self.find(user)
        return client is not None and name.startswith(client.prefix)

    def check(self, registry: Registry, key: ChannelKey, user: str, request: Request) -> None:
        """Raise AccessDeniedError unless the client may do what it asks; nothing was done.

        Args:
            registry: of the regions.
            key: client id and channel; a client may do anything with regions of its own that
                nobody else can see.
            user: its public key.
            request: what it asks.
        """
        client = self.find(user)
        if client is None:
            raise AccessDeniedError("the node authorises this client's key no more")
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
    """Return the role that a request needs; scratch memory of a client's own needs none."""
    needed = NEEDED[request.op]
    if request.op is Op.CREATE:
        body = cast("Create", request.body)
        is_there = body.exist_ok and registry.find(body.kind, body.name) is not None
        return Role.READ if is_there or _is_scratch(registry, body) else needed
    if request.op is Op.FREE:
        own = registry.owns(cast("Free", request.body).address, key[0])
        return Role.READ if own else needed
    return needed


def _is_scratch(registry: Registry, body: Create) -> bool:
    """Tell whether a CREATE makes memory that only its client sees, whatever it is called."""
    is_there = registry.find(body.kind, body.name) is not None
    return body.scratch and not body.publish and not is_there


def _names(registry: Registry, key: ChannelKey, request: Request) -> Iterator[str]:
    """Iterate over the names of what a request touches, but for regions of the client's own.

    Raises:
        SmboxError: what it names is malformed, or no region.
    """
    body = request.body
    if isinstance(body, Create):
        if not _is_scratch(registry, body):
            yield body.name
    elif isinstance(body, Attach) and body.address is None:
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
    elif body is None:  # PING, LIST and STATS, which have one, name nothing
        yield request.address
        if request.op in (Op.FROM, Op.SNAPSHOT, Op.DOT):
            yield operands.unpack_address(request.payload)
        elif request.op is Op.UPDATE:
            nbytes = carried_nbytes(request.nbytes, request.operand)
            yield from operands.unpack_update(request.payload, nbytes).siblings


def _state(folder: Path) -> dict[str, object]:
    """Return something that differs once a file of the folder does, by the files' names."""
    return {path.name: _file_state(path) for path in (folder / CLIENTS).glob("*.toml")}


def _file_state(path: Path) -> object:
    try:
        stat = path.stat()
    except OSError as error:  # it is just being removed, or a link that leads nowhere
        return error.errno
    return stat.st_mtime_ns, stat.st_size, stat.st_ino


class ZapHandler:
    """Answers ZeroMQ's questions; the server polls ``socket`` and calls ``answer``.

    Args:
        context: of the listeners; the handler must be there before they are.
        access: who is authorised.
        now_s: monotonic seconds.
    """

    def __init__(
        self, context: zmq.Context[zmq.Socket[bytes]], access: Access, now_s: float
    ) -> None:
        self._access = access
        self._allowed, self._filled_s = STRANGERS_BURST, now_s
        self._refused, self._noted_s = 0, now_s - REFUSED_NOTE_S
        self.socket = context.socket(zmq.REP)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.bind(ZAP_ENDPOINT)

    def answer(self, now_s: float) -> None:
        """Answer one question."""
        try:
            asked = self.socket.recv_multipart(zmq.NOBLOCK)
        except zmq.Again:
            return
        request = asked[1] if len(asked) > 1 else b""
        status, text, user = self._judge(asked, now_s)
        self.socket.send_multipart([ZAP_VERSION, request, status, text, user, b""])

    def _judge(self, asked: list[bytes], now_s: float) -> tuple[bytes, bytes, bytes]:
        is_curve = len(asked) == ZAP_FRAMES and asked[5] == b"CURVE" and len(asked[6]) == 32
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
        self._note(asked[3].decode(errors="replace") if len(asked) > 3 else "?", now_s)
        return b"400", b"this key is not authorised", b""

    def _note(self, address: str, now_s: float) -> None:
        self._refused += 1
        if now_s - self._noted_s >= REFUSED_NOTE_S:
            _LOG.warning("refused %d handshakes, the last from %s", self._refused, address)
            self._refused, self._noted_s = 0, now_s

    def close(self) -> None:
        """Close the socket."""
        self.socket.close(linger=0)

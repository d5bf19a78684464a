"""gRPC as a way to do the verbs: unary, one message each, and streams of chunks.

The client's arrays are its own, as those of smbox are: a request is made of an array, and a
reply lands in one. gRPC takes and gives ``bytes``, so either is a copy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any, Final

import numpy as np

from memory_or_messages.programs import started
from memory_or_messages.rows import MIB, Verb
from memory_or_messages.ways import Floats, Way, mean_s

CHUNKS_NBYTES: Final = (MIB, 4 * MIB)
UNARY: Final = "gRPC unary"
STREAM: Final = "gRPC stream"

MISSING: Final = "" if find_spec("grpc") else "grpcio is not installed: pip install smbox[rpc]"


class Unary:
    """One message a call.

    Args:
        channel: to the server.
        size: of the largest operand.
    """

    name = UNARY

    def __init__(self, channel: Any, size: int) -> None:
        from memory_or_messages.grpc_server import REQUEST, SERVICE  # noqa: PLC0415 - an extra

        self._request = REQUEST
        self._x = np.ones(size, np.float32)
        self._call = {
            verb: channel.unary_unary(f"/{SERVICE}/{verb}")
            for verb in ("put", "get", "accumulate", "elastic")
        }

    def seconds(self, verb: Verb, nbytes: int, repeats: int) -> float:
        """See Way."""
        x, call = self._x[: nbytes // 4], self._call[verb]

        def get() -> None:
            reply = call(self._request.pack(nbytes, nbytes))
            np.copyto(x, np.frombuffer(reply, np.float32))

        def elastic() -> None:
            reply = call(x.tobytes())
            np.subtract(x, np.frombuffer(reply, np.float32), out=x)

        calls: dict[str, Callable[[], object]] = {"get": get, "elastic": elastic}
        return mean_s(calls.get(verb, lambda: call(x.tobytes())), repeats)


class Stream:
    """Chunks, each a message of one call.

    Args:
        channel: to the server.
        size: of the largest operand.
        chunk_nbytes: of a message.
    """

    def __init__(self, channel: Any, size: int, chunk_nbytes: int) -> None:
        from memory_or_messages.grpc_server import REQUEST, SERVICE  # noqa: PLC0415 - an extra

        self.name = f"{STREAM}, {chunk_nbytes // MIB} MiB"
        self._request = REQUEST
        self.chunk_nbytes = chunk_nbytes
        self._x = np.ones(size, np.float32)
        put, accumulate = (
            channel.stream_unary(f"/{SERVICE}/{verb}_stream") for verb in ("put", "accumulate")
        )
        self._take = {"put": put, "accumulate": accumulate}
        self._get = channel.unary_stream(f"/{SERVICE}/get_stream")
        self._elastic = channel.stream_stream(f"/{SERVICE}/elastic_stream")

    def seconds(self, verb: Verb, nbytes: int, repeats: int) -> float:
        """See Way."""
        x = self._x[: nbytes // 4]

        def get() -> None:
            at = 0
            for message in self._get(self._request.pack(nbytes, self.chunk_nbytes)):
                chunk = np.frombuffer(message, np.float32)
                np.copyto(x[at : at + len(chunk)], chunk)
                at += len(chunk)

        def elastic() -> None:
            at = 0
            for message in self._elastic(self._chunks(x)):
                chunk = np.frombuffer(message, np.float32)
                place = x[at : at + len(chunk)]
                np.subtract(place, chunk, out=place)
                at += len(chunk)

        calls: dict[str, Callable[[], object]] = {"get": get, "elastic": elastic}
        return mean_s(calls.get(verb, lambda: self._take[verb](self._chunks(x))), repeats)

    def _chunks(self, x: Floats) -> Iterator[bytes]:
        step = self.chunk_nbytes // 4
        for at in range(0, len(x), step):
            yield x[at : at + step].tobytes()


@contextmanager
def grpc_ways(nbytes: int) -> Iterator[list[Way]]:
    """Open gRPC for operands so large; no ways where it is not installed."""
    if MISSING:
        yield []
        return
    import grpc  # noqa: PLC0415 - an extra

    from memory_or_messages.grpc_server import OPTIONS  # noqa: PLC0415 - an extra

    size = nbytes // 4
    server = ["-m", "memory_or_messages.grpc_server", str(size)]
    with started(server) as told:
        channel = grpc.insecure_channel(f"127.0.0.1:{told['port']}", options=OPTIONS)
        try:
            yield [Unary(channel, size), *(Stream(channel, size, n) for n in CHUNKS_NBYTES)]
        finally:
            channel.close()

"""The gRPC server: a numpy array behind methods that do what the verbs do.

Run as ``python -m memory_or_messages.grpc_server SIZE``; prints a line of JSON with its port
and ends when its standard input does. Messages are plain bytes, without protobuf: requests and
replies are the operands themselves. A request of a get is ``REQUEST``: bytes in all, and bytes
of a message. Changes exclude each other, per message.
"""

from __future__ import annotations

import json
import os
import struct
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import grpc
import numpy as np

from memory_or_messages.ways import Floats, pull

SERVICE: Final = "memory"
REQUEST: Final = struct.Struct("<QQ")
OPTIONS: Final = [
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    ("grpc.http2.max_frame_size", (1 << 24) - 1),
    ("grpc.optimization_target", "throughput"),
]
"""Of server and channel: no limit of a message, and the largest frames of HTTP/2."""

THREADS: Final = 4


class Store:
    """The array and its methods, each on one message.

    Args:
        size: elements.
    """

    def __init__(self, size: int) -> None:
        self._c, self._d = np.ones(size, np.float32), np.ones(size, np.float32)
        self._lock = threading.Lock()

    def put(self, message: bytes, at: int) -> None:
        """Overwrite what lies at this element."""
        x, c, _ = self._places(message, at)
        with self._lock:
            np.copyto(c, x)

    def get(self, at: int, limit: int) -> bytes:
        """Return a copy of the elements between the two."""
        return self._c[at:limit].tobytes()

    def accumulate(self, message: bytes, at: int) -> None:
        """Add to what lies at this element."""
        x, c, _ = self._places(message, at)
        with self._lock:
            np.add(c, x, out=c)

    def elastic(self, message: bytes, at: int) -> bytes:
        """Move what lies at this element; return the move of the caller."""
        x, c, d = self._places(message, at)
        with self._lock:
            pull(x, c, d)
            return d.tobytes()

    def _places(self, message: bytes, at: int) -> tuple[Floats, Floats, Floats]:
        x = np.frombuffer(message, np.float32)
        place = slice(at, at + len(x))
        return x, self._c[place], self._d[place]


def handlers(store: Store) -> dict[str, Any]:
    """Return a handler for each method: the verb, and ``VERB_stream``."""

    def taken(change: Callable[[bytes, int], None]) -> tuple[Any, Any]:
        def whole(message: bytes, _: Any) -> bytes:
            change(message, 0)
            return b""

        def stream(messages: Iterator[bytes], _: Any) -> bytes:
            at = 0
            for message in messages:
                change(message, at)
                at += len(message) // 4
            return b""

        return grpc.unary_unary_rpc_method_handler(whole), grpc.stream_unary_rpc_method_handler(
            stream
        )

    def get(request: bytes, _: Any) -> bytes:
        return store.get(0, REQUEST.unpack(request)[0] // 4)

    def get_stream(request: bytes, _: Any) -> Iterator[bytes]:
        size, step = (nbytes // 4 for nbytes in REQUEST.unpack(request))
        for at in range(0, size, step):
            yield store.get(at, min(at + step, size))

    def elastic_stream(messages: Iterator[bytes], _: Any) -> Iterator[bytes]:
        at = 0
        for message in messages:
            yield store.elastic(message, at)
            at += len(message) // 4

    put, put_stream = taken(store.put)
    accumulate, accumulate_stream = taken(store.accumulate)
    return {
        "put": put,
        "put_stream": put_stream,
        "get": grpc.unary_unary_rpc_method_handler(get),
        "get_stream": grpc.unary_stream_rpc_method_handler(get_stream),
        "accumulate": accumulate,
        "accumulate_stream": accumulate_stream,
        "elastic": grpc.unary_unary_rpc_method_handler(lambda x, _: store.elastic(x, 0)),
        "elastic_stream": grpc.stream_stream_rpc_method_handler(elastic_stream),
    }


def main() -> None:
    """Serve until standard input ends."""
    server = grpc.server(ThreadPoolExecutor(THREADS), options=OPTIONS)
    generic = grpc.method_handlers_generic_handler(SERVICE, handlers(Store(int(sys.argv[1]))))
    server.add_generic_rpc_handlers((generic,))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    print(json.dumps({"port": port}), flush=True)
    sys.stdin.read()
    server.stop(None)
    os._exit(0)  # gRPC's threads are not waited for


if __name__ == "__main__":
    main()

"""Server side of the limits: a process that only moves bytes, over raw TCP or bare ZeroMQ.

Run as ``python -m smbox.cli.bench.peer``; prints a line of JSON with its two ports, serves
one TCP connection and any number of ZeroMQ ones, and ends when its standard input does.
"""

from __future__ import annotations

import json
import os
import socket
import struct
import sys
import threading
from typing import Final

import numpy as np
import zmq

REQUEST: Final = struct.Struct("<cxxxxxxxQQ")  # what to do, bytes in all, bytes of a call
FRAME: Final = struct.Struct("<cxxxxxxxQQ")  # what to do, where in the store, how many bytes
FRAME_NBYTES: Final = 1 << 20
STORE_NBYTES: Final = 640 << 20  # as much as the largest transfer; written as far as used
HEADER_NBYTES: Final = 64
SEND: Final = b"G"  # the peer sends: a get
TAKE: Final = b"P"  # the peer takes: a put
BOTH: Final = b"E"  # each frame comes back: an elastic exchange
DONE: Final = b"."
STREAM_NBYTES_MAX: Final = 1 << 20


def serve_stream(listener: socket.socket) -> None:
    """Answer the requests of one raw TCP connection until it closes."""
    connection, _ = listener.accept()
    with connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        buffer = memoryview(bytearray(STREAM_NBYTES_MAX))
        while request := connection.recv(REQUEST.size, socket.MSG_WAITALL):
            what, nbytes, call_nbytes = REQUEST.unpack(request)
            if what == SEND:
                send_stream(connection, buffer, nbytes, call_nbytes)
            else:
                take_stream(connection, buffer, nbytes, call_nbytes)
                connection.sendall(DONE)


def send_stream(
    connection: socket.socket, buffer: memoryview, nbytes: int, call_nbytes: int
) -> None:
    """Send ``nbytes`` in calls of ``call_nbytes``, always from the same buffer."""
    while nbytes:
        step = min(nbytes, call_nbytes)
        connection.sendall(buffer[:step])
        nbytes -= step


def take_stream(
    connection: socket.socket, buffer: memoryview, nbytes: int, call_nbytes: int
) -> None:
    """Receive ``nbytes`` by calls for at most ``call_nbytes``, always into the same buffer."""
    while nbytes:
        got = connection.recv_into(buffer[: min(nbytes, call_nbytes)])
        if not got:
            raise ConnectionError("the other end closed in the middle")
        nbytes -= got


def serve_frames(router: zmq.Socket[bytes]) -> None:
    """Answer requests of bare ZeroMQ clients until the context is terminated.

    The bytes come from, and land in, an array as large as the transfer, as they do in smbox.
    What nobody has written would be sent out of the kernel's one page of zeros, and no memory
    be read: it is written first.
    """
    store, written = np.empty(STORE_NBYTES, np.uint8), 0
    while True:
        try:
            frames = router.recv_multipart(copy=False)
        except zmq.ContextTerminated:
            router.close(linger=0)
            return
        header = frames[1].bytes
        place = _place(header)
        if place.stop > written:
            store[written : place.stop] = 1
            written = place.stop
        if header[:1] != SEND:
            store.data[place] = frames[2].buffer
        reply: list[zmq.Frame | bytes | memoryview] = [frames[0], header]
        if header[:1] != TAKE:
            reply.append(store.data[place])
        router.send_multipart(reply, copy=False)


def frame_header(what: bytes, at: int, nbytes: int) -> bytes:
    """Make the header of one frame's request: what to do with which bytes of the store."""
    return FRAME.pack(what, at, nbytes).ljust(HEADER_NBYTES, b"\0")


def _place(header: bytes) -> slice:
    _, at, nbytes = FRAME.unpack_from(header)
    return slice(at, at + nbytes)


def main() -> None:
    """Serve until standard input ends."""
    with socket.create_server(("127.0.0.1", 0)) as listener, zmq.Context() as context:
        router = context.socket(zmq.ROUTER)
        zmq_port = router.bind_to_random_port("tcp://127.0.0.1")
        threading.Thread(target=serve_stream, args=(listener,), daemon=True).start()
        threading.Thread(target=serve_frames, args=(router,), daemon=True).start()
        ports = {"tcp_port": listener.getsockname()[1], "zmq_port": zmq_port}
        print(json.dumps(ports | {"pid": os.getpid()}), flush=True)
        sys.stdin.read()
        os._exit(0)  # daemon threads may sit in calls that nothing wakes


if __name__ == "__main__":
    main()

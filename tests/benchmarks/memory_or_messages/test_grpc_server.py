"""The gRPC server does what the verbs of a region do, by one message and by streams."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

grpc = pytest.importorskip("grpc")

from memory_or_messages.grpc_server import OPTIONS, REQUEST, SERVICE, Store, handlers  # noqa: E402
from memory_or_messages.ways import MOVING_RATE  # noqa: E402

from smbox.testing.model_box import ModelBox  # noqa: E402

SIZE = 1000
pytestmark = pytest.mark.shares


@pytest.fixture(scope="module")
def channel():
    with ThreadPoolExecutor(2) as pool:
        server = grpc.server(pool, options=OPTIONS)
        methods = handlers(Store(SIZE))
        server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(SERVICE, methods),)
        )
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        with grpc.insecure_channel(f"127.0.0.1:{port}", options=OPTIONS) as opened:
            yield opened
        server.stop(None).wait(30)


def chunks(x: np.ndarray, size: int):
    return iter([x[at : at + size].tobytes() for at in range(0, len(x), size)])


def test_verbs_of_one_message_and_of_streams_equal_those_of_a_region(channel):
    random = np.random.default_rng(0)
    region = ModelBox().create("x", shape=SIZE)
    request = REQUEST.pack(4 * SIZE, 4 * 300)

    def call(kind: str, verb: str):
        return getattr(channel, kind)(f"/{SERVICE}/{verb}")

    def contents() -> list[np.ndarray]:
        whole = call("unary_unary", "get")(request)
        parts = [*call("unary_stream", "get_stream")(request)]
        assert [len(part) for part in parts] == [1200, 1200, 1200, 400]
        return [np.frombuffer(each, np.float32) for each in (whole, b"".join(parts))]

    for verb in ("put", "accumulate", "elastic"):
        for is_stream in (False, True):
            x = random.standard_normal(SIZE).astype(np.float32)
            expected = x.copy()
            if verb == "elastic":
                region.elastic(expected, MOVING_RATE)
            else:
                getattr(region, verb)(x)
            if is_stream:
                kind = "stream_stream" if verb == "elastic" else "stream_unary"
                reply = call(kind, f"{verb}_stream")(chunks(x, 300))
                reply = b"".join(reply)
            else:
                reply = call("unary_unary", verb)(x.tobytes())
            if verb == "elastic":
                moved = x - np.frombuffer(reply, np.float32)
                np.testing.assert_allclose(moved, expected, rtol=0, atol=1e-6)
            else:
                assert reply == b""
            for found in contents():
                np.testing.assert_allclose(found, region.get(), rtol=0, atol=1e-6)

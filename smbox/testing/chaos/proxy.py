"""A tcp proxy of a node's unix socket that can cut, hold or slow the link at any byte."""

from __future__ import annotations

import asyncio
import contextlib
import math
import random
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Final, Self

CHUNK_NBYTES: Final = 64 * 1024
START_S: Final = 30.0


class _Pair:
    """One connection and its other half; ``pace`` gives bytes a second, each way."""

    def __init__(
        self, near: asyncio.StreamWriter, far: asyncio.StreamWriter, pace: Callable[[], float]
    ) -> None:
        self.ends = (near, far)
        self._pace = pace
        self.gate = asyncio.Event()
        self.gate.set()

    async def pump(self, source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        """Carry bytes one way until an end is gone."""
        with contextlib.suppress(OSError):
            while data := await source.read(CHUNK_NBYTES):
                await self.gate.wait()
                await asyncio.sleep(len(data) / self._pace())
                target.write(data)
                await target.drain()
        self.cut()

    def cut(self) -> None:
        """Reset both ends; what is in between is lost."""
        self.gate.set()
        for end in self.ends:
            end.transport.abort()


class Proxy:
    """Forwards ``address`` to a unix socket, from a thread of its own; a context manager.

    Attributes:
        address: to connect to.
        pace: bytes a second that each connection carries each way; may change at any time.

    Args:
        path: of the unix socket; nobody needs to listen there yet.
    """

    def __init__(self, path: str) -> None:
        self.address = ""
        self.pace = math.inf
        self._path = path
        self._loop = asyncio.new_event_loop()
        self._pairs: list[_Pair] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._thread = threading.Thread(target=self._loop.run_forever, name="chaos-proxy")
        self._server: asyncio.Server | None = None

    def __enter__(self) -> Self:
        self._thread.start()
        self._call(self._listen())
        return self

    def __exit__(self, *_: object) -> None:
        self._call(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def cut(self, rng: random.Random) -> bool:
        """Cut one connection; False if there is none."""
        return bool(self._call(self._cut(rng)))

    def hold(self, rng: random.Random, seconds: float) -> bool:
        """Let no byte of one connection pass for so long, then all; False if there is none."""
        return bool(self._call(self._hold(rng, seconds)))

    def _call(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(START_S)

    async def _listen(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.address = f"tcp://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def _serve(self, reader: asyncio.StreamReader, near: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            far_reader, far = await asyncio.open_unix_connection(self._path)
        except OSError:
            near.transport.abort()
            self._tasks.discard(task)
            return
        pair = _Pair(near, far, lambda: self.pace)
        self._pairs.append(pair)
        await asyncio.gather(pair.pump(reader, far), pair.pump(far_reader, near))
        self._pairs.remove(pair)
        self._tasks.discard(task)

    async def _cut(self, rng: random.Random) -> bool:
        if self._pairs:
            rng.choice(self._pairs).cut()
        return bool(self._pairs)

    async def _hold(self, rng: random.Random, seconds: float) -> bool:
        if not self._pairs:
            return False
        pair = rng.choice(self._pairs)
        pair.gate.clear()
        self._loop.call_later(seconds, pair.gate.set)
        return True

    async def _close(self) -> None:
        if self._server is not None:
            self._server.close()
        while self._tasks:
            for pair in list(self._pairs):
                pair.cut()
            await asyncio.wait(list(self._tasks), timeout=0.1)

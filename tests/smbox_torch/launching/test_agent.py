"""An agent that is interrupted leaves nothing on its host."""

from __future__ import annotations

import signal
import subprocess
import sys
import uuid

from smbox.memory.segment import Segment, listing
from smbox_torch.launching.frames import Frames, Kind, encode

NODE = """
import signal
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
print("up", flush=True)
signal.sigwait({signal.SIGTERM})
print("told", flush=True)
signal.pause()
"""


def test_a_second_interrupt_does_not_keep_the_memory_of_a_node():
    node = f"run-{uuid.uuid4().hex}"
    said = bytearray()
    frames = Frames(lambda _kind, _number, payload: said.extend(payload))
    order = {"argv": [sys.executable, "-c", NODE], "env": {}, "node": node, "at_death": 9}
    told = {"folder": "/", "env": {}, "words": [], "workers": 0, "grace_s": 60.0}
    with subprocess.Popen(
        [sys.executable, "-m", "smbox_torch.launching.agent"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        bufsize=0,
    ) as agent:
        assert agent.stdin is not None
        assert agent.stdout is not None
        assert agent.stdout.readline() + agent.stdout.readline() == b"\nsmbox agent 2\n"
        agent.stdin.write(encode(Kind.PREPARE, 0, told) + encode(Kind.START, 1, order))
        for word in (b"up\n", b"told\n"):
            while word not in said:
                chunk = agent.stdout.read(65536)
                assert chunk, said
                frames.feed(chunk)
            if word == b"up\n":
                Segment.create(f"smbox.{node}.region.000000001000", 4096).close()
            agent.send_signal(signal.SIGTERM)
        assert agent.wait() == 0
    assert listing(f"smbox.{node}") == []

"""With too few open files ZeroMQ aborts the process: it is not started then."""

from __future__ import annotations

import errno
import os
import socket
import subprocess
import sys

from smbox.transports.zeromq import resolution_error

STARTING = """
import os, resource, time
from smbox.errors import SystemLimitError
from smbox.transports.zeromq import FILES, LENT_NBYTES_MIN, ZmqTransport

os.closerange(3, 256)
_, most = resource.getrlimit(resource.RLIMIT_NOFILE)
for left in range(FILES + 1):
    resource.setrlimit(resource.RLIMIT_NOFILE, (3 + left, most))
    try:
        transport = ZmqTransport("tcp://127.0.0.1:9", queue_max=4)
    except SystemLimitError as error:
        assert "ulimit -n" in str(error), error
    else:
        break
assert left == FILES, left
assert transport.send([b"header", bytes(LENT_NBYTES_MIN)])
transport.close()
limit_s = time.monotonic() + 20.0
while not transport.is_released():
    assert time.monotonic() < limit_s
    time.sleep(0.001)
"""


def test_who_can_open_too_few_files_is_refused_and_not_aborted():
    done = subprocess.run(
        [sys.executable, "-c", STARTING],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_a_name_that_cannot_be_looked_up_at_present_is_not_called_misspelt(monkeypatch):
    def full(*_args):
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(socket, "getaddrinfo", full)
    reason = resolution_error("tcp://node:5555")
    assert reason is not None
    assert "ulimit -n" in reason
    assert "spelling" not in reason

"""memnode/waker.py: a poll that another thread ends."""

from __future__ import annotations

import os
import select
import threading

import pytest

from memnode.waker import Waker


def is_readable(waker):
    return bool(select.select([waker.fd], [], [], 0)[0])


def test_it_ends_a_poll_until_it_is_cleared():
    waker = Waker()
    assert not is_readable(waker)
    ringing = threading.Thread(target=waker.ring)
    ringing.start()
    assert select.select([waker.fd], [], [], 30)[0]
    ringing.join()
    waker.ring()
    waker.clear()
    assert not is_readable(waker)
    waker.clear()


def test_its_file_ends_with_it():
    waker = Waker()
    fd = waker.fd
    del waker
    with pytest.raises(OSError, match="descriptor"):
        os.fstat(fd)

"""Tests without the native library: clients are remote only, and no node starts."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

import smbox
from memnode import cli

CLIENT = """
import numpy as np, smbox
with smbox.connect() as box:
    print(box.transport, "SMBOX_NO_NATIVE" in box.transport_reason)
    box.attach("w").accumulate(np.ones(3))
"""

OWNER = """
import smbox
try:
    smbox.local("16MiB")
except smbox.errors.NativeError as error:
    print(error)
"""


DOCTOR = """
from smbox.cli.main import main
main(["doctor"])
"""


def without_native(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments], env=os.environ | {"SMBOX_NO_NATIVE": "1"} | environ,
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


def test_a_client_sends_messages():
    with smbox.local("16MiB") as box:
        region = box.create("w", 3, dtype="float64")
        done = without_native("-c", CLIENT, SMBOX_ADDRESS=box.address)
        assert done.stdout == "tcp True\n", done.stderr
        assert region.get().tolist() == [1, 1, 1]


def test_doctor_says_so_in_both_places():
    with smbox.local("16MiB") as box:
        done = without_native("-c", DOCTOR, SMBOX_ADDRESS=box.address)
    assert done.returncode == 0, done.stderr
    assert "memory is never mapped" in done.stdout
    told = {line.split()[0]: line for line in done.stdout.splitlines() if line.strip()}
    assert told["transport"].split() == ["transport", "tcp"]
    assert "unset it" in told["because"]


def test_mapped_memory_cannot_be_asked_for(monkeypatch):
    with smbox.local("16MiB") as box:
        monkeypatch.setenv("SMBOX_NO_NATIVE", "1")
        with pytest.raises(smbox.errors.ConfigError, match="unset it"):
            smbox.connect(box.address, transport="shm")


def test_memnode_says_why_it_does_not_start():
    done = without_native("-m", "memnode", "--bind", "tcp://127.0.0.1:0", "--memory", "16MiB")
    assert (done.returncode, done.stdout) == (cli.EXIT_FAILED, "")
    assert "unset it" in done.stderr


def test_local_says_why_it_starts_no_node():
    done = without_native("-c", OWNER)
    assert "unset it" in done.stdout, done.stderr
    assert done.stderr == ""

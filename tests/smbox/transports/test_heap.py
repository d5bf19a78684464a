"""Memory of one reply serves the next."""

import subprocess
import sys

import pytest

PROGRAM = """
import resource, sys, threading
import numpy as np
from smbox.transports import zeromq

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

def receive():
    for _ in range(25):
        [np.ones(1 << 20, np.uint8) for _ in range(8)]

if sys.argv[1] == "learnt":
    zeromq.learn_large_blocks()
thread = threading.Thread(target=receive)
before = faults()
thread.start()
thread.join()
print(faults() - before)
"""


def faults_of(how):
    command = [sys.executable, "-c", PROGRAM, how]
    ran = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    return int(ran.stdout)


@pytest.mark.skipif(sys.platform != "linux", reason="a rule of glibc")
def test_memory_of_large_blocks_is_used_again():
    assert faults_of("learnt") < 10_000

"""Errors of fcntl, as the library's commit sees them: repeat, BUSY, or an error."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys

import numpy as np

from smbox.dtypes import by_name
from smbox.memory.kernels import KernelCode
from smbox.memory.orders import Result

SHIM = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>

int shim_error, shim_times; /* the errno of the next shim_times calls */
int shim_calls;

static int run(const char *name, int fd, int command, void *argument) {
    if (command == F_OFD_SETLK) {
        shim_calls++;
        if (shim_times > 0) {
            shim_times--;
            errno = shim_error;
            return -1;
        }
    }
    int (*real)(int, int, ...) = (int (*)(int, int, ...))dlsym(RTLD_NEXT, name);
    return real(fd, command, argument);
}

#define REPLACE(name) \\
    int name(int fd, int command, ...) { \\
        va_list rest; \\
        va_start(rest, command); \\
        void *argument = va_arg(rest, void *); \\
        va_end(rest); \\
        return run(#name, fd, command, argument); \\
    }
REPLACE(fcntl)
REPLACE(fcntl64)
"""

PROGRAM = """
import ctypes, json, os, secrets, sys
import numpy as np
from smbox import dtypes
from smbox.memory.kernels import KernelCode
from smbox.memory.node_memory import NodeMemory
from smbox.memory.region_header import RegionSpec
from smbox.testing.regions import build, commit

names = "shim_error", "shim_times", "shim_calls"
error, times, calls = (ctypes.c_int.in_dll(ctypes.CDLL(None), name) for name in names)
memory = NodeMemory.open(f"t{secrets.token_hex(4)}", 64 << 20)
try:
    spec = RegionSpec("r", dtypes.by_name("uint8"), (4,))
    region = build(memory.name, spec, memory.superblock.take_address(4))
    outcomes = []
    for number, count in json.loads(sys.argv[1]):
        before = region.version()
        error.value, times.value, calls.value = number, count, 0
        try:
            commit(memory.writer, (region,), KernelCode.SUM, 0, 4, np.ones(4, np.uint8))
            raised = None
        except Exception as caught:
            raised = type(caught).__name__
        used, times.value = calls.value, 0
        outcomes.append([raised, used, region.version() - before])
    print(json.dumps([outcomes, region.array().tolist()]))
finally:
    memory.close(keep=False)
"""

NEVER_OPEN = 2**31 - 1  # a descriptor above every limit
LOCK_AND_UNLOCK = 2
CASES = {
    "EINTR": (3, [None, 3 + LOCK_AND_UNLOCK, 1]),
    "EAGAIN": (1, ["StripeBusy", 1, 0]),
    "EACCES": (1, ["StripeBusy", 1, 0]),
    "ENOLCK": (1, ["SegmentError", 1, 0]),
    "EBADF": (1, ["SegmentError", 1, 0]),
    "EINVAL": (1, ["SegmentError", 1, 0]),
    "0": (0, [None, LOCK_AND_UNLOCK, 1]),  # no error: the lock and the unlock are all calls
}


def test_eintr_repeats_contention_is_busy_and_all_else_is_an_error(tmp_path, quick_cc):
    source, library = tmp_path / "shim.c", tmp_path / "shim.so"
    source.write_text(SHIM)
    subprocess.run([quick_cc, "-shared", "-fPIC", source, "-o", library, "-ldl"], check=True)
    cases = [(getattr(errno, name, 0), times) for name, (times, _) in CASES.items()]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps(cases)],
        env=os.environ | {"LD_PRELOAD": str(library)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    outcomes, data = json.loads(done.stdout)
    assert dict(zip(CASES, outcomes, strict=True)) == {
        name: expected for name, (_, expected) in CASES.items()
    }
    assert data == [2] * 4


def test_a_lock_file_that_is_not_open_is_an_error_and_not_busy(native):
    data = np.zeros(4, np.uint8)
    without_locks = type(native)(NEVER_OPEN)
    region, table = without_locks.region(data)
    operand = by_name("uint8").code
    result = without_locks.commit(
        KernelCode.SUM, [region], 4, np.ones(4, np.uint8), operand=operand
    )
    assert result == Result.LOCK_FAILED
    assert not data.any()
    assert not table.any()

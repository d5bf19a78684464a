"""The library without Python: under sanitizers, and on aarch64 under qemu-user."""

from __future__ import annotations

import importlib.util
import platform
import shutil
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from smbox import dtypes
from smbox.memory.kernels import KernelCode
from smbox.memory.layout import Consistency
from smbox.memory.orders import Output, Result
from smbox.native import compiling
from smbox.testing import kernels
from smbox.testing.kernel_cases import KernelCase, difference, kernel_cases

pytestmark = pytest.mark.shares  # pipes to one process

COUNTS = (1, 31, 700)
STRIPE_NBYTES, BLOCK_NBYTES = 2048, 512
REQUEST = struct.Struct("<12Q8s2Q")
DRIVER = Path(__file__).with_name("driver.c")
FLAGS = tuple(flag for flag in compiling.FLAGS if flag not in {"-shared", "-fPIC"})
LEVEL = "-O1" if platform.machine() == "aarch64" else "-O0"
"""-O0 compiles faster, but GCC 14 for aarch64 ends with an internal error there."""
SANITIZERS = (LEVEL, "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")

has_zig = importlib.util.find_spec("ziglang") is not None
emulator = shutil.which("qemu-aarch64") or shutil.which("qemu-aarch64-static")
needs_zig = pytest.mark.skipif(not has_zig, reason="ziglang is not installed")


def build(folder: Path, compiler: list[str], *options: str) -> Path:
    """Compile the library's sources and the driver into one program."""
    program = folder / "driver"
    sources = [str(source) for source in compiling.sources() if source.suffix == ".c"]
    macro = '-DSMBOX_BUILD_COMPILER=""'
    command = [*compiler, *FLAGS, *compiling.WARNINGS, *options, macro]
    command += [f"-I{compiling.FOLDER}", *sources, str(DRIVER), "-o", str(program), "-lm"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return program


def variants(case: KernelCase) -> Iterator[tuple[int, int, int]]:
    """Yield in_place, has_channel and consistency of each way to run a case."""
    yield 0, 1, Consistency.STRIPE
    if case.output == Output.MOVED:
        yield 1, 0, Consistency.STRIPE
    if len(case.regions) == 1:
        yield 0, 0, Consistency.NONE


def packed(case: KernelCase, level: int, variant: tuple[int, int, int]) -> bytes:
    in_place, has_channel, consistency = variant
    is_float = type(case.scale) is float
    parameters = struct.pack("<4d", *case.parameters, *[0.0] * (4 - len(case.parameters)))
    request = REQUEST.pack(
        case.kernel,
        dtypes.of(case.regions[0].dtype).code,
        case.operand,
        case.output,
        len(case.regions),
        level,
        case.regions[0].nbytes,
        case.source.nbytes,
        0 if case.answer is None else case.answer.nbytes,
        consistency,
        STRIPE_NBYTES,
        BLOCK_NBYTES,
        struct.pack("<d" if is_float else "<q", case.scale),
        in_place,
        has_channel,
    )
    data = b"".join(region.tobytes() for region in case.regions)
    return request + parameters + data + case.source.tobytes()


def wanted_square(case: KernelCase) -> np.ndarray:
    """Return the dot product of the first region with itself; 0 if it has no floats."""
    first = case.wanted[0]
    is_float = dtypes.of(first.dtype).kind == "float"
    return np.array([kernels.dot(first, first) if is_float else 0.0])


def check(program: list[str], levels: tuple[int, ...]) -> None:
    """Run every kernel in one process; compare all results with numpy."""
    runs = [
        (case, level, variant)
        for case in kernel_cases(COUNTS)
        for level in levels
        for variant in variants(case)
    ]
    sent = b"".join(packed(*run) for run in runs)
    done = subprocess.run(program, input=sent, capture_output=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr.decode()[-4000:]
    assert not done.stderr
    rest = memoryview(done.stdout)
    for case, level, variant in runs:
        result, rest = int.from_bytes(rest[:8], "little"), rest[8:]
        assert result == Result.DONE, case.name
        answer = () if case.answer is None else (case.answer,)
        for wanted in (*case.wanted, *answer):
            found = np.frombuffer(rest[: wanted.nbytes], wanted.dtype)
            told = difference(found, wanted)
            assert told is None, f"{case.name}, level {level}, {variant}: {told}"
            rest = rest[wanted.nbytes :]
        words = -(-case.regions[0].nbytes // STRIPE_NBYTES) * len(case.regions)
        sequences, rest = np.frombuffer(rest[: 8 * words], np.uint64), rest[8 * words :]
        assert (sequences == 1 << 16).all(), case.name
        square, rest = np.frombuffer(rest[:8], np.float64), rest[8:]
        told = difference(square, wanted_square(case))
        assert told is None, f"dot of {case.name}: {told}"
    assert not rest


@pytest.fixture(scope="module")
def sanitized(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program, compiled with sanitizers."""
    if compiling.system_compiler() is None:
        pytest.skip("this machine has no C compiler")
    folder = tmp_path_factory.mktemp("sanitized")
    return build(folder, compiling.system_compiler(), *SANITIZERS)


@pytest.mark.skipif(platform.machine() != "x86_64", reason="levels of x86-64")
def test_no_sanitizer_complains(sanitized):
    check([str(sanitized)], (0, 1))


@pytest.mark.parametrize(
    ("words", "result"),
    [
        ((1, 8, 0, 0), Result.DONE),  # count, bytes of a row, places, values
        (((1 << 60) + 1, 8, 0, 0), Result.BAD_ORDER),  # times 16, it is 1 modulo 2**64
        ((2, 8, 0, 0), Result.BAD_ORDER),
        ((1, 8, 2, 0), Result.BAD_ORDER),
        ((1, 0, 0), Result.BAD_ORDER),
        ((1, 6, 0, 0), Result.BAD_ORDER),
        ((1, 24, 0, 0, 0, 0), Result.BAD_ORDER),
        ((1,), Result.BAD_ORDER),
    ],
)
def test_rows_of_any_header_are_read_only_if_they_fit(sanitized, words, result):
    region, source = np.zeros(4, np.float32), np.array(words, np.uint64).view(np.uint8)
    float32 = dtypes.of(region.dtype).code
    rows = KernelCase("", KernelCode.SCATTER_PUT, (region,), source, float32, 1.0, (region,))
    sent = packed(rows, 0, (0, 0, Consistency.STRIPE))
    done = subprocess.run([sanitized], input=sent, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    assert int.from_bytes(done.stdout[:8], "little") == result


@pytest.mark.timeout(400)  # zig builds its C library once, and keeps it in its cache
@needs_zig
@pytest.mark.skipif(emulator is None, reason="qemu-user is not installed: no qemu-aarch64")
def test_aarch64_computes_the_same_bits(tmp_path):
    compiler = compiling.zig_compiler("aarch64", "musl")
    program = build(tmp_path, compiler, "-static")
    check([emulator, str(program)], (0,))

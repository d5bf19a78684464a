"""Whatever suits a processor, the bytes are the same: both ways, on any machine."""

from __future__ import annotations

import importlib.util
import sys

import numpy as np
import pytest

numba = pytest.importorskip("numba", reason="compiled code is an extra")

from llvmlite import binding  # noqa: E402

from smbox import dtypes  # noqa: E402
from smbox.memory import kernels  # noqa: E402
from smbox.memory.compiled_ops import address_of  # noqa: E402
from smbox.memory.kernels import KernelCode  # noqa: E402
from smbox.memory.modes import Back, factors, mode_of  # noqa: E402

PROCESSORS = {"znver5": True, "sapphirerapids": False}
LARGEST_NBYTES = 2 * 64 * 1024 + 3 * 4096 + 8
RATE = 0.3


def fresh(name, patch):
    """Load one more copy of a module, which those loaded after it will find."""
    spec = importlib.util.find_spec(f"smbox.memory.{name}")
    module = importlib.util.module_from_spec(spec)
    patch.setitem(sys.modules, spec.name, module)
    patch.setattr(sys.modules["smbox.memory"], name, module, raising=False)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module", params=PROCESSORS)
def tuned(request, tmp_path_factory):
    """``compiled`` and ``compiled_tuning`` as they are on another processor."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(numba.config, "CACHE_DIR", str(tmp_path_factory.mktemp("kernels")))
        with pytest.MonkeyPatch.context() as elsewhere:
            elsewhere.setattr(binding, "get_host_cpu_name", lambda: request.param)
            tuning = fresh("compiled_tuning", patch)
        assert PROCESSORS[request.param] == tuning.HAS_STEPS
        yield fresh("compiled", patch), tuning


@pytest.fixture(scope="module")
def change(tuned):
    """Change a block run; all of it is one call of compiled code."""
    compiled, _ = tuned

    @numba.njit
    def run(mode, data, source, old, back, scale, whole, how, progress):
        operand = compiled.Operand(
            mode, address_of(source), scale, whole, how, address_of(back)
        )
        compiled.change_blocks(
            operand, address_of(data), 0, data.size, address_of(old), progress, 0
        )

    return run


def lengths(tuning, itemsize):
    borders = [0, tuning.STEP_NBYTES, tuning.BLOCK_NBYTES, tuning.COPIED_NBYTES]
    near = {border + more * itemsize for border in borders for more in (-1, 0, 1, 17)}
    return sorted(n for n in {*near, LARGEST_NBYTES} if n > 0)


CASES = [
    (KernelCode.REPLACE, "int16", 1),
    (KernelCode.SUM, "float32", -0.1),
    (KernelCode.SUM, "float64", -0.1),
    (KernelCode.SUM, "uint64", 3),
    (KernelCode.ELASTIC, "float32", RATE),
    (KernelCode.ELASTIC, "float64", RATE),
]


@pytest.mark.parametrize("how", list(Back))
@pytest.mark.parametrize(("code", "name", "scale"), CASES)
def test_memory_journal_and_share_are_those_of_numpy(tuned, change, code, name, scale, how):
    if how in {Back.MOVED, Back.DELTA} and code != KernelCode.ELASTIC:
        how = Back.NONE
    dtype = dtypes.by_name(name)
    rng = np.random.default_rng(3)
    for nbytes in lengths(tuned[1], dtype.itemsize):
        drawn = rng.standard_normal((2, nbytes // dtype.itemsize)) * 1000
        data, source = drawn.astype(dtype.numpy)
        before, sent, old = data.copy(), source.copy(), np.zeros(nbytes + 8, np.uint8)
        wanted, progress = data.copy(), np.zeros(2, np.uint64)
        kernels.run_kernel(code, wanted, sent, kernels.scale_of(code, dtype, scale))
        back = source if how == Back.MOVED else np.zeros_like(source)
        views = (data.view("u1"), source.view("u1"), old, back.view("u1"))
        change(mode_of(code, dtype), *views, *factors(code, dtype, scale), int(how), progress)
        assert data.tobytes() == wanted.tobytes(), nbytes
        assert old.tobytes() == before.tobytes() + bytes(8), nbytes
        assert progress.tolist() == [nbytes, 0]
        assert back.tobytes() == share(how, sent, before, scale).tobytes(), nbytes
        assert how == Back.MOVED or source.tobytes() == sent.tobytes()


def share(how, sent, before, scale):
    if how == Back.NONE:
        return np.zeros_like(sent)
    if how == Back.OLD:
        return before
    delta = kernels.elastic_delta(sent, before, sent.dtype.type(scale))
    return delta if how == Back.DELTA else sent - delta


@pytest.mark.parametrize("name", ["float32", "float64"])
def test_another_array_moves_as_the_source_itself_does(change, name):
    """Only where they are one array is the exchange one pass."""
    mode = mode_of(KernelCode.ELASTIC, dtypes.by_name(name))
    center, x = np.random.default_rng(4).standard_normal((2, 20_000)).astype(name)
    found = []
    for is_one in (True, False):
        data, source = center.copy(), x.copy()
        back = source if is_one else x.copy()
        views = [array.view("u1") for array in (data, source, np.zeros_like(data), back)]
        change(mode, *views, RATE, 1, int(Back.MOVED), np.zeros(1, np.uint64))
        found.append((data.tobytes(), back.tobytes()))
    assert found[0] == found[1]

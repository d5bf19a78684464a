"""Whether the compiled kernels are there, and the door through which a commit reaches them.

They are: with numba installed, unless SMBOX_ACCEL=0. Everything works without them, at some
half of the speed. Importing numba takes a process a third of a second, and the first one on a
host, which compiles, some seconds more. So it happens once enough work has come by to pay for
it, or when ``load`` asks for it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import platform
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from smbox.dtypes import DType
from smbox.memory import compile_cache, kernels
from smbox.memory.kept_delta import KeptDelta
from smbox.memory.kernels import KernelCode, Scale
from smbox.memory.modes import Mode, factors, flat, mode_of

LOAD_AFTER_NBYTES: Final = 32 * 1024 * 1024
CALL_NBYTES: Final = 8 * 1024
"""What one call counts for besides its bytes: 4096 small ones are work enough."""
_NUMPY: Final = int(Mode.NUMPY)

log = logging.getLogger(__name__)


class Engine(NamedTuple):
    """The compiled entry points.

    Attributes:
        journaled: see ``compiled.journaled``.
        commit_stripes: see ``compiled_runs.commit_stripes``; None where the machine may
            reorder stores: only x86 keeps the order that readers of ``seq`` rely on.
        read_stripes: see ``compiled_reads.read_stripes``; None likewise.
        give_back_once: see ``compiled.give_back_once``.
        commit_items: see ``compiled_items.commit_items``; None as ``commit_stripes``.
    """

    journaled: Callable[..., None]
    commit_stripes: Callable[..., int] | None
    read_stripes: Callable[..., int] | None
    give_back_once: Callable[..., None] | None = None
    commit_items: Callable[..., int] | None = None


class Accel:
    """Loads the engine at most once.

    Args:
        environ: where SMBOX_ACCEL is looked up.
        machine: the processor's name, as ``platform.machine`` tells it.
    """

    def __init__(self, environ: Mapping[str, str], machine: str) -> None:
        self.engine: Engine | None = None
        self._is_settled = environ.get("SMBOX_ACCEL") == "0"
        self._machine = machine
        self._seen_nbytes = 0
        self._is_aside = False
        self._loading = threading.Lock()

    def prepare(self, nbytes: int) -> Engine | None:
        """Return the engine if it is loaded; load it once enough has been asked for.

        May take seconds, once: not to be called with a lock held. While another thread
        loads it, or where that is to happen ``aside``, this one goes on in numpy.

        Args:
            nbytes: bytes that the caller is about to change or read.
        """
        if self._is_settled:
            return self.engine
        self._seen_nbytes += nbytes + CALL_NBYTES
        if not self.is_due() or self._is_aside or self._loading.locked():
            return None
        return self.load()

    def is_due(self) -> bool:
        """Tell whether enough has been asked for, and nothing was loaded."""
        return self._seen_nbytes >= LOAD_AFTER_NBYTES and not self._is_settled

    @contextlib.contextmanager
    def aside(self) -> Iterator[None]:
        """Load nothing in ``prepare`` inside this block, whose owner calls ``load`` when due.

        For a thread that many wait for: it would keep them all waiting.
        """
        self._is_aside = True
        try:
            yield
        finally:
            self._is_aside = False

    def loaded(self) -> Engine | None:
        """Return the engine if it is loaded, at once: where nobody may be kept waiting."""
        return self.engine

    def load(self) -> Engine | None:
        """Return the engine, loading it now if that can be done here; None if it cannot."""
        with self._loading:
            if not self._is_settled:
                self.engine = self._try_load()
                self._is_settled = True
        return self.engine

    def _try_load(self) -> Engine | None:
        try:
            with compile_cache.in_use():
                return _load(has_runs=self._machine in {"x86_64", "AMD64"})
        except ModuleNotFoundError as error:
            log.info("no compiled kernels, numpy does the same: %s", error)
        except Exception:
            log.warning("the compiled kernels cannot be loaded, numpy goes on", exc_info=True)
        return None


def _load(*, has_runs: bool) -> Engine:
    from smbox.memory import compiled  # noqa: PLC0415 - imports numba

    if not has_runs:
        return Engine(compiled.journaled, None, None, compiled.give_back_once)
    from smbox.memory import (  # noqa: PLC0415 - import numba
        compiled_items,
        compiled_reads,
        compiled_runs,
    )

    return Engine(
        compiled.journaled,
        compiled_runs.commit_stripes,
        compiled_reads.read_stripes,
        compiled.give_back_once,
        compiled_items.commit_items,
    )


_accel: Final = Accel(os.environ, platform.machine())
prepare: Final = _accel.prepare
loaded: Final = _accel.loaded
load: Final = _accel.load
is_due: Final = _accel.is_due
aside: Final = _accel.aside


def journaled(  # noqa: PLR0913, PLR0917 - kernels know of no Change, only of its parts
    code: KernelCode,
    data: NDArray[np.uint8],
    source: NDArray[Any],
    old: NDArray[np.uint8],
    dtype: DType,
    scale: Scale,
    progress: NDArray[np.uint64],
    progress_at: int,
    delta: KeptDelta | None = None,
) -> None:
    """Do what ``kernels.journaled`` does, by the compiled kernels where they are loaded.

    They save and change some KiB at a time instead of the whole piece at once; arguments,
    errors and resulting bits are the same, but ``delta`` keeps nothing. Never loads anything:
    its caller holds a lock.
    """
    engine = _accel.engine
    mode = _NUMPY if engine is None else mode_of(code, dtype)
    operand = flat(source)
    fits = operand.size == data.size <= old.size and data.size % dtype.itemsize == 0
    if engine is None or mode == _NUMPY or not fits:
        kernels.journaled(code, data, source, old, dtype, scale, progress, progress_at, delta)
        return
    factor, whole = factors(code, dtype, scale)
    engine.journaled(mode, data, operand, old, factor, whole, progress, progress_at)

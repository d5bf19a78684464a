"""Helpers of the contract checks: unused names, data, and expected errors."""

from __future__ import annotations

import contextlib
import secrets
import threading
from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from smbox.dtypes import TABLE, DType
from smbox.memory.layout import STRIPE_NBYTES

DTYPES: Final = TABLE
STRIPE: Final = STRIPE_NBYTES // 4
COUNTS: Final = (0, 1, 5, STRIPE, STRIPE + 1, 3 * STRIPE + 7)
"""Elements of float32 that fill nothing, little, one stripe, and a bit more."""


def fresh(word: str) -> str:
    """Return a name that no other check uses."""
    return f"{word}-{secrets.token_hex(6)}"


def values(count: int, dtype: DType, seed: int = 0) -> NDArray[Any]:
    """Return ``[count]`` small numbers that every element type holds exactly."""
    generator = np.random.default_rng([seed, count])
    low = 0 if dtype.kind in {"bool", "uint"} else -4
    return generator.integers(low, 2 if dtype.kind == "bool" else 5, count).astype(dtype.numpy)


@contextlib.contextmanager
def region_of(box: Any, init: Any, consistency: str = "stripe") -> Iterator[Any]:
    """Create a region with these contents; free it at the end of the block."""
    region = box.create(fresh("check"), init=init, consistency=consistency)
    try:
        yield region
    finally:
        box.free(region)


@contextlib.contextmanager
def raises(*kinds: type[BaseException]) -> Iterator[list[BaseException]]:
    """Expect an error of one of these classes; the list receives it."""
    caught: list[BaseException] = []
    try:
        yield caught
    except kinds as error:
        caught.append(error)
        return
    raise AssertionError(f"none of {[kind.__name__ for kind in kinds]} was raised")


def same(found: NDArray[Any], wanted: NDArray[Any]) -> None:
    """Compare bit for bit: dtype, shape and every element."""
    assert found.dtype == wanted.dtype, (found.dtype, wanted.dtype)
    assert found.shape == wanted.shape, (found.shape, wanted.shape)
    assert found.tobytes() == wanted.tobytes(), np.flatnonzero((found != wanted).reshape(-1))[
        :10
    ]


def in_threads(count: int, job: Callable[[int], None]) -> None:
    """Run ``job(0)`` to ``job(count - 1)`` in a thread each; raise the first job's error."""
    errors: list[BaseException] = []

    def run(index: int) -> None:
        try:
            job(index)
        except BaseException as error:  # noqa: BLE001 - handed to the caller
            errors.append(error)

    threads = [threading.Thread(target=run, args=(index,)) for index in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]

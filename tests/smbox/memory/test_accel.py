from __future__ import annotations

import logging
import platform

import numpy as np
import pytest

from smbox import dtypes
from smbox.errors import ConfigError
from smbox.memory import accel, kernels
from smbox.memory.accel import CALL_NBYTES, LOAD_AFTER_NBYTES, Accel, Engine
from smbox.memory.kernels import KernelCode

MACHINE = platform.machine()
FLOAT32 = dtypes.by_name("float32")


class Recorder:
    """Stands in for compiled code, and for the loader of it."""

    def __init__(self) -> None:
        self.calls: list[tuple] = []

    def __call__(self, *args: object, **kwargs: object) -> object:
        self.calls.append((*args, kwargs))
        return Engine(self, None, None)


@pytest.fixture
def loader(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    recorder = Recorder()
    monkeypatch.setattr(accel, "_load", recorder)
    return recorder


def test_the_setting_turns_it_off(loader: Recorder):
    off = Accel({"SMBOX_ACCEL": "0"}, MACHINE)
    assert off.load() is None
    assert off.prepare(LOAD_AFTER_NBYTES) is None
    assert loader.calls == []


def test_it_is_loaded_once(loader: Recorder):
    pytest.importorskip("numba", reason="without it nothing can be loaded")
    it = Accel({}, MACHINE)
    assert it.load() is it.load() is it.prepare(1) is it.engine is not None
    assert len(loader.calls) == 1


def test_much_work_loads_it(loader: Recorder):
    pytest.importorskip("numba", reason="without it nothing can be loaded")
    it = Accel({}, MACHINE)
    assert it.prepare(LOAD_AFTER_NBYTES // 2) is None
    assert it.prepare(LOAD_AFTER_NBYTES // 2) is not None


def test_many_calls_load_it(loader: Recorder):
    pytest.importorskip("numba", reason="without it nothing can be loaded")
    it = Accel({}, MACHINE)
    calls = 1
    while it.prepare(8) is None:
        calls += 1
    assert 1000 < calls <= LOAD_AFTER_NBYTES // CALL_NBYTES


def test_where_many_wait_it_is_only_said_to_be_due(loader: Recorder):
    pytest.importorskip("numba", reason="without it nothing can be loaded")
    it = Accel({}, MACHINE)
    with it.aside():
        assert it.prepare(LOAD_AFTER_NBYTES // 2) is None
        assert not it.is_due()
        assert it.prepare(LOAD_AFTER_NBYTES // 2) is None
        assert it.is_due()
        assert loader.calls == []
    assert it.prepare(8) is not None
    assert not it.is_due()


def test_whoever_comes_while_it_is_loaded_does_not_wait(loader: Recorder):
    it = Accel({}, MACHINE)
    with it._loading:
        assert it.prepare(LOAD_AFTER_NBYTES) is None
    assert loader.calls == []


@pytest.mark.parametrize("error", [ModuleNotFoundError("numba"), RuntimeError("LLVM")])
def test_what_cannot_be_loaded_is_tried_once_and_done_by_numpy(monkeypatch, caplog, error):
    tries = []

    def fail(**_: bool) -> None:
        tries.append(1)
        raise error

    monkeypatch.setattr(accel, "_load", fail)
    it = Accel({}, MACHINE)
    with caplog.at_level(logging.INFO, accel.__name__):
        assert it.load() is None
        assert it.load() is None
    assert len(tries) <= 1  # without numba it does not come so far
    assert len(caplog.records) == 1
    assert "numpy" in caplog.text


def test_runs_are_for_machines_that_keep_the_order_of_stores(loader: Recorder):
    pytest.importorskip("numba", reason="without it nothing can be loaded")
    for machine in ("x86_64", "AMD64", "aarch64"):
        Accel({}, machine).load()
    assert [call[-1]["has_runs"] for call in loader.calls] == [True, True, False]


def test_an_engine_without_runs_still_has_the_block_loop():
    pytest.importorskip("numba", reason="the engine is compiled by it")
    engine = Accel({}, "aarch64").load()
    assert engine is not None
    assert engine.commit_stripes is None
    assert engine.read_stripes is None


def change(code: KernelCode, *, source: np.ndarray | None = None, dtype=FLOAT32) -> np.ndarray:
    data = np.zeros(3, dtype.numpy)
    source = np.full(3, 2, dtype.numpy) if source is None else source
    old, progress = np.zeros(12, np.uint8), np.zeros(1, np.uint64)
    accel.journaled(code, data.view("u1"), source, old, dtype, 1, progress, 0)
    return data


def test_journaled_takes_the_compiled_kernel_where_there_is_one(monkeypatch):
    recorder = Recorder()
    monkeypatch.setattr(accel._accel, "engine", Engine(recorder, None, None))
    assert change(KernelCode.SUM).tolist() == [0, 0, 0]  # the stand-in changes nothing
    assert len(recorder.calls) == 1
    assert change(KernelCode.MAX).tolist() == [2, 2, 2]
    assert len(recorder.calls) == 1


def test_journaled_is_numpys_while_nothing_is_loaded(monkeypatch):
    monkeypatch.setattr(accel._accel, "engine", None)
    assert change(KernelCode.SUM).tolist() == [2, 2, 2]


@pytest.mark.parametrize("is_loaded", [True, False])
def test_journaled_refuses_a_source_of_another_length(monkeypatch, is_loaded: bool):
    recorder = Recorder()
    engine = Engine(recorder, None, None) if is_loaded else None
    monkeypatch.setattr(accel._accel, "engine", engine)
    with pytest.raises(ConfigError, match="length"):
        change(KernelCode.SUM, source=np.ones(2, "f4"))
    assert recorder.calls == []


def test_the_two_have_the_same_arguments():
    assert accel.journaled.__annotations__.keys() == kernels.journaled.__annotations__.keys()

"""Dtypes of wires and centers: what is rounded, and that nothing of it is lost over time."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from smbox.errors import ConfigError, OutOfMemoryError
from smbox.testing.model_box import ModelBox
from smbox_torch.model.precision import Precision, Sender

HALVES = [torch.float16, torch.bfloat16]


def random(seed: int, size: int = 64) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(size).astype(np.float32)


@pytest.mark.parametrize("wire", HALVES)
def test_over_many_operands_only_the_last_rest_is_missing(wire: torch.dtype):
    sender, values = Sender(64, torch.float32, wire), random(1)
    total, rests = np.zeros(64, np.float64), []
    for _ in range(200):
        total += sender.operand(values).astype(np.float64)
        rests.append(np.abs(total - (len(rests) + 1) * values.astype(np.float64)))
    assert np.max(rests) < torch.finfo(wire).eps * np.abs(values).max()
    rounded = torch.from_numpy(values).to(wire).double().numpy()
    assert np.abs(200 * (rounded - values)).max() > 20 * np.max(rests)  # without the rests


@pytest.mark.parametrize("wire", HALVES)
def test_moves_too_small_for_the_values_beside_them_arrive(wire: torch.dtype):
    sender = Sender(1, torch.float32, wire)
    sent = [float(sender.operand(np.array([v], np.float32))[0]) for v in [1.0] + [1e-4] * 100]
    assert sum(sent) == pytest.approx(1.01, abs=torch.finfo(wire).eps)


def test_an_operand_of_the_centers_dtype_is_the_array_itself():
    sender, values = Sender(64, torch.float32, torch.float32), random(2)
    assert sender.operand(values) is values
    assert (sender.is_exact, sender.nbytes) == (True, 256)
    assert Sender(64, torch.float32, torch.bfloat16).nbytes == 128


def test_a_value_too_large_for_the_wire_is_refused_and_leaves_the_rests():
    sender = Sender(1, torch.float32, torch.float16)
    sender.operand(np.array([1e-9], np.float32))
    with pytest.raises(ConfigError, match="bfloat16"):
        sender.operand(np.array([1e6], np.float32))
    (sent,) = sender.operand(np.array([6e-8], np.float32))
    assert float(sent) == pytest.approx(6e-8, rel=0.05)
    assert np.isinf(float(sender.operand(np.array([np.inf], np.float32))[0]))  # as it came


@pytest.mark.parametrize("wire", HALVES)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_does_not_enter_later_operands(wire: torch.dtype, value: float):
    sender = Sender(1, torch.float32, wire)
    sent = [float(sender.operand(np.array([v], np.float32))[0]) for v in (value, 1.0)]
    np.testing.assert_array_equal(sent, [value, 1.0])


@pytest.mark.parametrize("wire", [*HALVES, torch.float32])
def test_what_is_sent_again_after_an_error_is_rounded_once(wire: torch.dtype):
    ends = []
    for fails in (False, True):
        sender, values = Sender(64, torch.float32, wire), random(4)
        if fails:
            with pytest.raises(OutOfMemoryError), sender.sending(values):
                raise OutOfMemoryError("full")
        for _ in range(3):
            with sender.sending(values) as sent:
                ends.append(sent.copy())
    np.testing.assert_array_equal(ends[:3], ends[3:])


@pytest.mark.parametrize("wire", HALVES)
def test_a_fetch_is_rounded_to_nearest(wire: torch.dtype):
    region = ModelBox().create("c", shape=64, init=random(3))
    out = np.empty(64, np.float32)
    Sender(64, torch.float32, wire).fetch(region, out)
    np.testing.assert_array_equal(out, torch.from_numpy(random(3)).to(wire).float().numpy())


@pytest.mark.parametrize(
    ("settings", "model", "center", "wire"),
    [
        ({}, torch.float32, torch.float32, torch.float32),
        ({}, torch.bfloat16, torch.float32, torch.bfloat16),
        ({}, torch.float64, torch.float64, torch.float64),
        ({"wire": "bfloat16"}, torch.float32, torch.float32, torch.bfloat16),
        ({"wire": "float16"}, torch.bfloat16, torch.float32, torch.float16),
        ({"wire": "float32"}, torch.bfloat16, torch.float32, torch.float32),
        ({"center_dtype": "float64"}, torch.float32, torch.float64, torch.float64),
        ({"center_dtype": "bfloat16"}, torch.bfloat16, torch.bfloat16, torch.bfloat16),
    ],
)
def test_dtypes_follow_the_model_and_the_settings(settings, model, center, wire):
    precision = Precision(**settings)
    assert (precision.center_of(model), precision.wire_of(model)) == (center, wire)


def test_impossible_dtypes_are_refused():
    for settings in ({"center_dtype": "int32"}, {"wire": "float8"}):
        with pytest.raises(ConfigError, match="float32"):
            Precision(**settings)
    for settings in ({"wire": "float32"}, {"wire": "bfloat16"}):
        with pytest.raises(ConfigError, match="wire"):
            Precision(**settings).wire_of(torch.float64)


def test_a_dtype_is_given_by_name():
    with pytest.raises(TypeError, match=r"wire must be the name of a dtype, .*not dtype"):
        Precision(wire=torch.bfloat16)
    with pytest.raises(TypeError, match="center_dtype must be the name"):
        Precision(None)
    with pytest.raises(ConfigError, match="wire must be one of float16"):
        Precision(wire="int8")

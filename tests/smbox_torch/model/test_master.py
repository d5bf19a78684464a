from __future__ import annotations

import pytest
import torch

from smbox.errors import ConfigError
from smbox_torch.model.flat import FlatParameters
from smbox_torch.model.master import Master
from smbox_torch.model.precision import Precision


def test_where_the_dtypes_are_equal_the_values_are_the_tensor_itself():
    flat = torch.ones(2)
    master = Master(flat, torch.float32)
    assert master.wide is flat
    assert master.values() is flat
    master.subtract(torch.full((2,), 0.25))
    assert flat.tolist() == [0.75] * 2


def test_what_rounding_leaves_out_is_kept_until_a_value_is_set():
    x = torch.nn.Parameter(torch.ones(2, dtype=torch.bfloat16))
    flat = FlatParameters([x], precision=Precision())
    (buffer,) = flat.buffers
    for _ in range(10):
        buffer.load()[:] += 1e-3
        buffer.store()
    assert buffer.load().tolist() == pytest.approx([1.01] * 2, abs=1e-6)
    assert x.tolist() == [1.0078125] * 2
    x.data.add_(2.0**-7)  # a local step adds to it
    assert flat.values()["bfloat16"].tolist() == pytest.approx([1.01 + 2.0**-7] * 2, abs=1e-6)
    saved = flat.values()
    x.data.zero_()
    assert flat.values()["bfloat16"].tolist() == [0.0] * 2
    flat.set(saved)
    assert torch.equal(flat.values()["bfloat16"], saved["bfloat16"])
    buffer.master.subtract(torch.full((2,), 1.0))
    assert x.float().tolist() == pytest.approx([0.01 + 2.0**-7] * 2, rel=0.01)


def test_a_value_too_small_for_the_models_dtype_is_kept():
    master = Master(torch.zeros(1, dtype=torch.float16), torch.float32)
    master.wide.fill_(1e-8)
    master.narrow()
    assert master.values().tolist() == pytest.approx([1e-8])


def test_what_rounding_left_out_of_a_value_is_dropped_with_the_value():
    flat = torch.ones(2, dtype=torch.bfloat16)
    master = Master(flat, torch.float32)
    master.wide.add_(2.0**-8)
    master.narrow()
    flat[1] = 0.25  # of other code
    assert master.values().tolist() == [1.0 + 2.0**-8, 0.25]


def test_values_round_to_those_of_the_model():
    """Also where a step of the model halved the distance between two values of its dtype."""
    flat = torch.full((1,), 2.0, dtype=torch.bfloat16)
    master = Master(flat, torch.float32)
    master.wide.add_(2.0**-7)
    master.narrow()
    flat.fill_(1.0)
    assert master.values().tolist() == [1.0]


def test_an_infinite_value_stays_infinite():
    flat = torch.ones(2, dtype=torch.float16)
    Master(flat, torch.float32).subtract(torch.tensor([0.5, torch.inf]))
    assert flat.tolist() == [0.5, -torch.inf]


def test_a_move_is_subtracted_from_the_values_as_they_are():
    flat = torch.ones(1, dtype=torch.bfloat16)
    master = Master(flat, torch.float32)
    flat.add_(1.0)  # a step since the last exchange
    master.subtract(torch.full((1,), 0.5))
    assert flat.tolist() == [1.5]


@pytest.mark.parametrize("value", [1e5, -1e5])
def test_a_value_too_large_for_the_models_dtype_is_an_error(value: float):
    flat = torch.ones(2, dtype=torch.float16)
    master = Master(flat, torch.float32)
    with pytest.raises(ConfigError, match="too large"):
        master.subtract(torch.tensor([0.5, -value]))
    assert flat.tolist() == master.values().tolist() == [1.0, 1.0]
    master.subtract(torch.tensor([0.5, -65504.0]))
    assert flat.tolist() == [0.5, 65504.0]


@pytest.mark.parametrize("half", [torch.float16, torch.bfloat16])
def test_parameters_without_elements_have_a_master_too(half: torch.dtype):
    (buffer,) = FlatParameters(
        [torch.nn.Parameter(torch.empty(0, 4, dtype=half))], precision=Precision()
    ).buffers
    buffer.store()
    assert buffer.load().shape == (0,)

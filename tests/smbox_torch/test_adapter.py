from __future__ import annotations

import sys

import numpy as np
import pytest
import torch

from smbox.array import source_array
from smbox.errors import ConfigError
from smbox_torch.adapter import as_array, dtype_name, register


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "int64", "uint8", "bool"])
def test_a_tensor_and_its_array_share_memory(dtype: str):
    tensor = torch.zeros(3, dtype=getattr(torch, dtype))
    array = as_array(tensor)
    assert (array.dtype, dtype_name(tensor.dtype)) == (np.dtype(dtype), dtype)
    array[1] = 1
    assert tensor.tolist() == [0, 1, 0]


def test_a_dtype_of_torch_is_refused_with_what_to_pass(open_box):
    with pytest.raises(ConfigError, match='pass its name, such as "float32"'):
        open_box().create("x", (1,), torch.float32)


def test_bfloat16_goes_by_ml_dtypes():
    ml_dtypes = pytest.importorskip("ml_dtypes", reason="the bf16 extra is not installed")
    tensor = torch.tensor([1.5, -2.0], dtype=torch.bfloat16)
    array = as_array(tensor)
    assert array.dtype == ml_dtypes.bfloat16
    array[0] = 3.0
    assert tensor.tolist() == [3.0, -2.0]


def test_bfloat16_without_ml_dtypes_is_refused(monkeypatch):
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    with pytest.raises(ConfigError, match=r"smbox\[bf16\]"):
        as_array(torch.zeros(1, dtype=torch.bfloat16))


def test_a_parameter_is_taken_as_its_data():
    assert as_array(torch.nn.Parameter(torch.ones(2))).tolist() == [1.0, 1.0]


def test_tensors_without_memory_of_their_own_are_refused():
    for tensor in (torch.ones(2, device="meta"), torch.eye(2).to_sparse()):
        with pytest.raises(TypeError, match=r"dense CPU.*to_dense"):
            as_array(tensor)
    with pytest.raises(TypeError, match="resolve_neg"):
        as_array(torch._neg_view(torch.ones(2)))
    with pytest.raises(TypeError, match="resolve_conj"):
        as_array(torch.ones(2, dtype=torch.complex64).conj())
    with pytest.raises(TypeError, match="ZeroTensor"):
        as_array(torch._efficientzerotensor((2,)))


def test_smbox_takes_tensors_and_parameters():
    register()
    for x in (torch.ones(2), torch.nn.Parameter(torch.ones(2))):
        array = source_array(x, np.dtype(np.float32), (2,))
        assert array.__array_interface__["data"][0] == x.data_ptr()

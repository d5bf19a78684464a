from __future__ import annotations

import pytest
import torch

from smbox_torch.model.digest import digest


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_every_bit_and_the_order_count(dtype: torch.dtype):
    tensors = [torch.arange(6.0).to(dtype).view(2, 3).t(), torch.tensor(1.5, dtype=dtype)]
    before = digest(tensors)
    assert digest([tensor.clone() for tensor in tensors]) == before
    assert digest(reversed(tensors)) != before
    assert digest([torch.ones(3, 4).to(dtype)[:1, 0]]) == digest([torch.ones(1).to(dtype)])
    tensors[0].data[0, 0] = -0.0
    assert digest(tensors) != before

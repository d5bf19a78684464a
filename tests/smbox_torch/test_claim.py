from __future__ import annotations

import pytest
import torch

from smbox.errors import ConfigError, LayoutMismatchError
from smbox.testing.model_box import ModelBox
from smbox_torch import EASGD, Downpour
from smbox_torch.claim import claim


def parameter(size: int = 3, dtype: torch.dtype = torch.float32) -> torch.nn.Parameter:
    return torch.nn.Parameter(torch.ones(size, dtype=dtype))


def test_a_name_belongs_to_one_algorithm_and_one_model():
    box, shape = ModelBox(), (2, 3)
    claim(box, "run", "EASGD", [torch.zeros(shape)])
    claim(box, "run", "EASGD", [torch.ones(shape)])
    claim(box, "other", "Downpour", [torch.zeros(shape)])
    with pytest.raises(ConfigError, match="EASGD") as refused:
        claim(box, "run", "Downpour", [torch.zeros(shape)])
    assert "smbox rm" in str(refused.value)
    for other in (torch.zeros(3, 2), torch.zeros(shape, dtype=torch.float64)):
        with pytest.raises(LayoutMismatchError, match="another"):
            claim(box, "run", "EASGD", [other])


def test_another_algorithm_or_dtype_under_a_name_creates_nothing():
    box = ModelBox()
    EASGD(torch.optim.SGD([parameter()], lr=0.1), box, "run", workers=1)
    before, center = [region.name for region in box.regions()], box.attach("run.float32").get()
    with pytest.raises(ConfigError, match="another algorithm"):
        Downpour(torch.optim.SGD([parameter()], lr=0.1), box, "run", workers=1)
    for other in (parameter(4), parameter(dtype=torch.bfloat16)):
        with pytest.raises(LayoutMismatchError, match="choose another"):
            EASGD(torch.optim.SGD([other], lr=0.1), box, "run", workers=1)
    assert [region.name for region in box.regions()] == before
    assert box.attach("run.float32").get().tolist() == center.tolist()

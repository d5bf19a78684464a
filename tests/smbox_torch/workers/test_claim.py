from __future__ import annotations

import pytest
import torch

import smbox
from smbox.errors import ConfigError, LayoutMismatchError
from smbox.testing.model_box import ModelBox
from smbox_torch import EASGD, Downpour
from smbox_torch.workers.claim import claim


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


def test_whoever_is_refused_has_not_joined():
    with smbox.local("32MiB") as box:
        sgd = torch.optim.SGD([parameter()], lr=0.1)
        first = EASGD(sgd, box, "run", workers=2)
        others = (
            lambda: Downpour(torch.optim.SGD([parameter()], lr=0.1), box, "run", workers=2),
            lambda: EASGD(torch.optim.SGD([parameter(4)], lr=0.1), box, "run", workers=2),
        )
        for other in others:
            with pytest.raises((ConfigError, LayoutMismatchError)) as refused:
                other()
            assert first.member.look().count == 1
            del refused
        first.close()


def test_whoever_finds_another_center_has_left():
    with smbox.local("32MiB") as box:
        watcher = smbox.join(box, "run")
        box.create("run.float32", shape=7, dtype="float32")
        with pytest.raises(LayoutMismatchError) as refused:
            EASGD(torch.optim.SGD([parameter()], lr=0.1), box, "run", workers=2)
        assert watcher.look().count == 1
        del refused


@pytest.mark.parametrize(
    "settings",
    [{"lease_s": 0.0}, {"workers": 0}, {"rank": 1}, {"workers": 10**6}, {"wire": "int8"}],
)
def test_impossible_arguments_create_nothing(settings):
    with smbox.local("32MiB") as box:
        settings = {"workers": 1} | settings
        with pytest.raises(ConfigError):
            EASGD(torch.optim.SGD([parameter()], lr=0.1), box, "run", **settings)
        assert box.regions() == []

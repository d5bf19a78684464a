from __future__ import annotations

import numpy as np
import pytest
import torch

from smbox.errors import LayoutMismatchError, OutOfMemoryError
from smbox.testing.model_box import ModelBox, ModelRegion
from smbox_torch import EASGD, MVADownpour
from smbox_torch.model.flat import FlatParameters
from smbox_torch.optimizer.center import Center


def flat(value: float, size: int = 3) -> FlatParameters:
    return FlatParameters([torch.nn.Parameter(torch.full((size,), value))])


def test_the_first_worker_initialises_and_the_others_begin_there():
    box = ModelBox()
    first, second = flat(1.0), flat(2.0)
    Center(box, "run", first)
    Center(box, "run", second)
    assert box.attach("run.float32").get().tolist() == [1.0] * 3
    assert second.buffers[0].flat.tolist() == [1.0] * 3


def test_what_lies_beside_a_center_leaves_the_worker_alone():
    own = flat(2.0)
    beside = Center(ModelBox(), "run", own, init=0.0, loads=False)
    assert own.buffers[0].flat.tolist() == [2.0] * 3
    assert beside.values()["float32"].tolist() == [0.0] * 3


def test_values_go_out_and_come_back():
    center = Center(ModelBox(), "run", flat(1.0))
    center.put({"float32": torch.arange(3.0, dtype=torch.float64)})
    assert center.values()["float32"].tolist() == [0.0, 1.0, 2.0]
    found = np.empty(3, np.float32)
    center.read([found])
    assert found.tolist() == [0.0, 1.0, 2.0]
    assert center.behind(mine=0) == 0  # it was this worker's change


@pytest.mark.parametrize("size", [3, 300_000])
def test_changes_of_others_are_counted_whatever_the_size(size: int):
    center = Center(ModelBox(), "run", flat(0.0, size))
    region = center.regions[0]
    for _ in range(4):
        region.accumulate(np.ones(size, np.float32))
    assert center.behind() == 3
    region.accumulate(np.ones(size, np.float32))
    assert center.behind() == 0


def test_a_center_without_elements_has_no_changes():
    assert Center(ModelBox(), "run", flat(0.0, 0)).behind(mine=0) == 0


def test_dtypes_have_regions_of_their_own():
    tensors = [
        torch.nn.Parameter(torch.zeros(2, dtype=d)) for d in (torch.float32, torch.float64)
    ]
    box = ModelBox()
    center = Center(box, "run", FlatParameters(tensors))
    assert [region.name for region in box.regions()] == ["run.float32", "run.float64"]
    assert center.nbytes == 2 * 4 + 2 * 8


def test_another_model_is_refused():
    box = ModelBox()
    Center(box, "run", flat(0.0))
    with pytest.raises(LayoutMismatchError):
        Center(box, "run", flat(0.0, size=4))


@pytest.mark.parametrize(
    ("kind", "settings", "name"),
    [
        (EASGD, {"moving_rate": 0.5}, "run"),
        (MVADownpour, {"rate": 0.5}, "run.average"),
    ],
)
def test_an_exchange_that_is_repeated_after_an_error_counts_its_rounding_once(
    kind, settings, name, monkeypatch
):
    ends = []
    for fails in (False, True):
        box, x = ModelBox(), torch.nn.Parameter(torch.linspace(1, 2, 64))
        opt = kind(
            torch.optim.SGD([x], lr=1.0), box, "run", workers=1, wire="bfloat16", **settings
        )
        x.grad = torch.full((64,), -0.001)
        opt.step()
        x.grad = None
        if fails:
            with monkeypatch.context() as patch:
                patch.setattr(ModelRegion, "elastic", full)
                with pytest.raises(OutOfMemoryError):
                    opt.step()
        for _ in range(3):
            opt.step()
        ends.append(box.attach(f"{name}.float32").get())
    np.testing.assert_array_equal(*ends)


def full(*_args, **_options):
    raise OutOfMemoryError("full")

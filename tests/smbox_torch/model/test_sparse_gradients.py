from __future__ import annotations

import warnings

import pytest
import torch

from smbox.errors import ConfigError
from smbox.testing.model_box import ModelBox
from smbox_torch import (
    EASGD,
    SEASGD,
    SSP,
    Dogwild,
    Downpour,
    ParameterServer,
    ServerDownpour,
    SyncEASGD,
)
from smbox_torch.model.sparse_gradients import check_sparse

KINDS = sorted(
    name
    for name, kind in vars(torch.optim).items()
    if isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer)
    if name not in {"Optimizer", "LBFGS"}
)


def table() -> torch.nn.Embedding:
    """Its gradient is sparse, and there."""
    rows = torch.nn.Embedding(4, 2, sparse=True)
    rows(torch.tensor([1, 3])).sum().backward()
    return rows


def steps(optimizer: torch.optim.Optimizer) -> bool:
    """Tell whether torch can step."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's own, of sparse invariants
            optimizer.step()
    except RuntimeError:
        return False
    return True


def passes(optimizer: torch.optim.Optimizer) -> bool:
    """Tell whether the check passes."""
    try:
        check_sparse(optimizer)
    except ConfigError:
        return False
    return True


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
@pytest.mark.parametrize("name", KINDS)
def test_what_torch_cannot_step_along_is_refused(name: str, weight_decay: float):
    optimizer = getattr(torch.optim, name)(table().parameters(), lr=0.1)
    for group in optimizer.param_groups:
        if "weight_decay" in group:
            group["weight_decay"] = weight_decay
    assert passes(optimizer) == steps(optimizer)


@pytest.mark.parametrize("name", ["SGD", "Adagrad"])
def test_a_fused_optimizer_is_refused_as_torch_does(name: str):
    optimizer = getattr(torch.optim, name)(table().parameters(), lr=0.1, fused=True)
    assert not steps(optimizer)
    assert not passes(optimizer)


def test_sparse_adam_is_refused_a_dense_gradient_as_torch_does():
    layer = torch.nn.Linear(2, 1)
    layer(torch.ones(2)).backward()
    optimizer = torch.optim.SparseAdam([*table().parameters(), *layer.parameters()], lr=0.1)
    assert not steps(optimizer)
    assert not passes(optimizer)


@pytest.mark.parametrize("kind", [Dogwild, ParameterServer, ServerDownpour])
def test_sparse_adam_is_refused_at_once_where_gradients_are_summed(kind):
    box, rows = ModelBox(), table()
    optimizer = torch.optim.SparseAdam(rows.parameters(), lr=0.1)
    with pytest.raises(ConfigError, match="SparseAdam"):
        kind(optimizer, box, "run", workers=1)
    assert box.regions() == []


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        (EASGD, {}),
        (EASGD, {"overlap": True}),
        (SyncEASGD, {}),
        (SEASGD, {}),
        (Downpour, {}),
        (SSP, {}),
    ],
)
def test_a_dense_adam_is_refused_before_the_exchange(kind, settings):
    box, rows = ModelBox(), table()
    opt = kind(torch.optim.Adam(rows.parameters(), lr=0.1), box, "run", workers=1, **settings)
    done, before = len(box.log), rows.weight.tolist()
    with pytest.raises(ConfigError, match="SparseAdam"):
        opt.step()
    assert (len(box.log), rows.weight.tolist(), opt.steps) == (done, before, 0)
    opt.close()


def test_flat_gradients_are_dense():
    rows = table()
    adam = torch.optim.Adam(rows.parameters(), lr=0.1)
    opt = ServerDownpour(adam, ModelBox(), "run", workers=1)
    opt.step()
    assert opt.steps == 1

from __future__ import annotations

import warnings

import pytest
import torch.distributed as dist

from smbox_torch.optimizer.torch_group import CommunicationWarning, warn_if_both_communicate

SCRIPT = """
import warnings
from smbox.testing.model_box import ModelBox
from smbox_torch import EASGD, SyncGroup

def step(optimizer, x):
    x.grad = torch.ones(1) + rank
    optimizer.step()

with warnings.catch_warnings(record=True) as seen:
    warnings.simplefilter("default")
    for _ in range(2):
        x = torch.nn.Parameter(torch.zeros(1))
        sgd = torch.optim.SGD([x], lr=0.1)
        with WRAPPED as optimizer:
            step(optimizer, x)
            step(optimizer, x)
for each in seen:
    print(each.category.__name__, each.message)
"""
EACH_OWN = "EASGD(sgd, ModelBox(), 'run', workers=1)"
GIVEN = "SyncGroup(sgd, group=dist.group.WORLD)"


def test_one_warning_says_that_the_run_has_one_worker(run_gloo):
    for said in run_gloo(SCRIPT.replace("WRAPPED", EACH_OWN)):
        (warning,) = said
        assert warning.startswith("CommunicationWarning")
        assert "began with one worker" in warning
        assert "twice" not in warning


def test_a_group_that_was_given_is_no_reason_to_warn(run_gloo):
    assert run_gloo(SCRIPT.replace("WRAPPED", GIVEN)) == [[], []]


def test_a_group_of_one_rank_does_not_communicate_and_one_of_two_does(monkeypatch):
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr(dist, "get_world_size", lambda: 1)
    with warnings.catch_warnings(action="error"):
        warn_if_both_communicate(3)
    monkeypatch.setattr(dist, "get_world_size", lambda: 2)
    with pytest.warns(CommunicationWarning, match="2 ranks.*twice.*--torchrun-env"):
        warn_if_both_communicate(3)

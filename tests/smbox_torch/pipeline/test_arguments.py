"""What a pipeline is told: integers of any type, impossible values, tied parameters."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import smbox
from smbox.errors import ConfigError
from smbox_torch import Pipeline

pytestmark = pytest.mark.shares

X, Y = torch.ones(8, 5), torch.zeros(8, dtype=torch.int64)
LEASE_S = 400.0  # what is learnt by a lease is learnt too late
WAIT_S = 60.0


def front() -> nn.Module:
    return nn.Linear(5, 4)


def back() -> nn.Module:
    return nn.Linear(4, 3)


def made(box: smbox.Box, number: int, name: str, stages=(front, back), **more) -> Pipeline:
    told = {"example": X, "loss": F.cross_entropy, "timeout_s": math.inf, "lease_s": LEASE_S}
    return Pipeline(box, name, stages, **({"stage": number} | told | more))


def left(box: smbox.Box, name: str) -> list[str]:
    return [info.name for info in box.regions() if info.name.startswith(name)]


@pytest.mark.parametrize("integer", [np.int64, np.uint8, torch.tensor])
def test_counts_may_be_integers_of_any_type(run_stages, name, integer):
    def work(own, stage):
        told = {"micro_batches": integer(4), "slots": integer(2), "stage": integer(stage)}
        with made(own, stage, name, **told) as pipe:
            assert type(pipe.stage) is int
            return pipe.forward_backward(X, Y)

    first, last = run_stages(2, work)
    assert first == last > 0.0


COUNTS = [True, np.True_, torch.tensor(True), 4.0, 1.5, "4", None, -1, 0, math.nan, 10**30]
SECONDS = [0, -1.0, math.nan, True, "10", None]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *(("micro_batches", value) for value in COUNTS),
        *(("slots", value) for value in COUNTS),
        *(("timeout_s", value) for value in SECONDS),
        *(("lease_s", value) for value in [*SECONDS, math.inf]),
        *(("stage", value) for value in [True, 0.0, -1, 1, "0"]),
        *(("stages", value) for value in [3, None, {0: front}, iter([front])]),
        ("loss", 3),
        ("schedule", ["gpipe"]),
    ],
)
def test_impossible_arguments_create_nothing(node, name, key, value):
    told = {"stages": [front]} | {key: value}
    with pytest.raises(ConfigError, match=key.removesuffix("_s")):
        made(node, 0, name, **told)
    assert left(node, name) == []


@pytest.mark.parametrize(("key", "value"), [("slots", 1.5), ("micro_batches", -1)])
@pytest.mark.parametrize("failing", [0, 1, 2])
def test_stages_that_wait_learn_at_once_of_impossible_arguments(
    box, run_stages, name, failing, key, value
):
    """The lease is long, and the timeout infinite: only the failing stage itself can tell."""

    def work(own, stage):
        stages = (front, nn.Identity(), back)
        if stage != failing:
            with pytest.raises(ConfigError, match=f"stage {failing}: {key} (is|must)"):
                made(own, stage, name, stages)
        else:
            places = own.attach(f"{name}.members", timeout_s=WAIT_S)
            version = places.version
            while np.count_nonzero(places.get()[:3, 0]) < 2:  # the others have come
                version = places.wait(version + 1, timeout_s=WAIT_S)
            with pytest.raises(ConfigError, match=f"^{key} (is|must)"):
                made(own, stage, name, stages, **{key: value})

    run_stages(3, work)
    assert all(".members" in each for each in left(box, name))


class Sparse(nn.Module):
    def forward(self, x):
        return x.to_sparse()


def test_a_sparse_output_is_refused(node, name):
    with pytest.raises(ConfigError, match=r"a dense tensor, not torch\.sparse_coo"):
        made(node, 0, name, [Sparse])
    assert all(".members" in each for each in left(node, name))


def tied() -> list[nn.Module]:
    layers = [nn.Linear(5, 5), nn.Linear(5, 5)]
    layers[1].weight = layers[0].weight
    return [nn.Sequential(layers[0]), nn.ReLU(), nn.Sequential(nn.ReLU(), layers[1])]


def test_stages_that_share_a_parameter_are_refused(node, name):
    with pytest.raises(ConfigError, match=r"stages 0 and 2 share .*0\.weight and 1\.weight"):
        made(node, 0, name, tied())
    assert left(node, name) == []


def test_a_stage_may_use_a_parameter_twice_and_stages_the_same_module_without_any(node, name):
    layer, act = nn.Linear(5, 5), nn.ReLU()
    with made(node, 0, name, [nn.Sequential(layer, act, layer, act)]) as pipe:
        assert pipe.forward_backward(X, Y) > 0.0
    with pytest.raises(ConfigError, match="stage must be at most 2"):  # not: share
        made(node, 3, name, [layer, act, act])

from __future__ import annotations

import uuid

import numpy as np
import pytest
import torch
import torch.distributed as dist

from smbox.errors import ConfigError
from smbox.testing.model_box import ModelBox
from smbox_torch.hybrid.groups import Run, find_placement
from smbox_torch.hybrid.hybrid import HybridSGD
from smbox_torch.hybrid.roles import ExchangeSettings
from smbox_torch.world import World


def test_the_number_of_hosts_sets_the_moving_rate_even_where_hosts_differ():
    box = ModelBox()
    x = torch.nn.Parameter(torch.ones(3))
    world = World(world_size=5, local_world_size=1, group_world_size=3, run_id=uuid.uuid4().hex)
    with HybridSGD(torch.optim.SGD([x], lr=1.0), box, "run", period=1, world=world) as opt:
        for _ in range(2):
            x.grad = torch.ones(3)
            opt.step()
        np.testing.assert_allclose(box.attach("run.float32").get(), 1 - 0.45, rtol=1e-6)


def test_hosts_whose_number_nobody_tells_are_an_error():
    world = World(world_size=5, local_world_size=2)
    sgd = torch.optim.SGD([torch.nn.Parameter(torch.ones(3))], lr=1.0)
    with pytest.raises(ConfigError, match="groups="):
        HybridSGD(sgd, ModelBox(), "run", exchange="seasgd", world=world)


def test_hosts_whose_number_nobody_tells_may_have_a_given_rate():
    world = World(world_size=5, local_world_size=1, run_id=uuid.uuid4().hex)
    sgd = torch.optim.SGD([torch.nn.Parameter(torch.ones(3))], lr=1.0)
    options = {"exchange": "seasgd", "moving_rate": 0.1, "world": world}
    HybridSGD(sgd, ModelBox(), "run", **options).close()


def test_a_host_is_a_group_only_if_there_are_as_many():
    world = World(2, 0, 4, 2, group_rank=1, group_world_size=2)
    settings = ExchangeSettings("elastic", 1, None, overlap=False, increment=None)
    run = Run("run", world, settings, 1.0, 1)
    places = [find_placement(run, number, None, None, []) for number in (1, 2, None)]
    assert [place.index for place in places] == [None, 1, 1]


def test_a_process_group_is_no_host_even_if_there_are_as_many(monkeypatch):
    monkeypatch.setattr(dist, "get_rank", lambda _: 0)
    world = World(1, 1, 4, 2, group_rank=0, group_world_size=2)
    settings = ExchangeSettings("elastic", 1, None, overlap=False, increment=None)
    place = find_placement(Run("run", world, settings, 1.0, 1), 2, None, object(), [])
    assert (place.is_root, place.index) == (True, None)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [({}, "every rank"), ({"group": object()}, "group="), ({"groups": "all"}, "every rank")],
)
def test_groups_that_cannot_be_measured_are_refused(arguments, words):
    sgd = torch.optim.SGD([torch.nn.Parameter(torch.ones(3))], lr=1.0)
    with pytest.raises(ConfigError, match=words):
        HybridSGD(sgd, ModelBox(), "run", world=World(), **{"groups": "auto"} | arguments)

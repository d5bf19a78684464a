"""Names of runs and publications that cannot be: refused before anything is made."""

from __future__ import annotations

import uuid

import pytest
import torch

import smbox_torch
from smbox.errors import ConfigError, LimitError
from smbox_torch import topology
from smbox_torch.world import World

pytestmark = pytest.mark.shares

ALONE = World(
    rank=0,
    local_rank=0,
    world_size=1,
    local_world_size=1,
    group_rank=0,
    group_world_size=1,
    run_id=uuid.uuid4().hex,
)
WRONG = [
    (7, TypeError, "name is a str, not int"),
    (None, TypeError, "name is a str, not NoneType"),
    ("", LimitError, "1 to 200 bytes"),
    ("x" * 129, LimitError, "1 to 128 bytes"),
    ("a\ud800", ConfigError, "printable"),
    ("w#0123456789abcdef", ConfigError, "parts of striped regions"),
]


def sgd():
    return torch.optim.SGD(torch.nn.Linear(2, 1).parameters(), lr=0.1)


def wrapper(kind, **options):
    return lambda box, name: kind(sgd(), box, name, **options)


def vector():
    return [torch.zeros(3, requires_grad=True)]


USES = {
    **{
        kind: wrapper(getattr(smbox_torch, kind), workers=1)
        for kind in (
            *("EASGD", "EAMSGD", "SEASGD", "SyncEASGD", "Downpour", "ADownpour"),
            *("MVADownpour", "MDownpour", "ServerDownpour", "SSP", "ParameterServer"),
        )
    },
    "Dogwild": wrapper(smbox_torch.Dogwild, workers=2, rank=0),
    "Hogwild": wrapper(smbox_torch.Hogwild),
    "HogwildPP": wrapper(smbox_torch.HogwildPP, clusters=1, world=ALONE),
    "HybridSGD": wrapper(smbox_torch.HybridSGD, world=ALONE),
    "SyncGroup": lambda _, name: smbox_torch.SyncGroup(sgd(), name=name, world=ALONE),
    "Stopping": lambda box, name: smbox_torch.Stopping(box, name, "fastest", 3, workers=1),
    "Pipeline": lambda box, name: smbox_torch.Pipeline(
        box, name, [torch.nn.Linear(2, 2)], example=torch.zeros(2, 2), stage=0
    ),
    "Sandblaster": lambda box, name: smbox_torch.Sandblaster(
        box, vector(), name, workers=1, portions=1
    ),
    "SandblasterWorker": lambda box, name: smbox_torch.SandblasterWorker(
        box, vector(), name, rank=0
    ),
    "Publisher": lambda box, name: smbox_torch.Publisher(box, name, {"w": torch.zeros(3)}),
    "Subscriber": smbox_torch.Subscriber,
    "measure": lambda box, name: topology.measure(box, name, world=ALONE),
}
NOT_RUNS = {"SyncGroup", "Stopping", "Publisher", "Subscriber", "measure"}


@pytest.mark.parametrize("use", USES.values(), ids=USES)
@pytest.mark.parametrize(("name", "kind", "says"), WRONG)
def test_a_name_that_cannot_be_is_refused_and_nothing_is_made(node, use, name, kind, says):
    before = node.regions()
    with pytest.raises(kind, match=says):
        use(node, name)
    assert node.regions() == before


@pytest.mark.parametrize("part", ["cluster0", "group1", "members", "topology", "state.step"])
@pytest.mark.parametrize("kind", sorted(USES.keys() - NOT_RUNS))
def test_a_run_has_no_name_that_another_run_gives_to_a_part(node, kind, part):
    before = node.regions()
    with pytest.raises(ConfigError, match=r"a part of the run 'a\.run'"):
        USES[kind](node, f"a.run.{part}")
    assert node.regions() == before


def test_a_name_may_have_a_dot_and_a_number(node):
    for name in ("trial.0", "group1", "members.of.a.club"):
        with USES["Hogwild"](node, name):
            pass


@pytest.mark.parametrize("kind", ["SyncGroup", "HybridSGD"])
@pytest.mark.parametrize("name", ["runs/1", "a.building", "x" * 128])
def test_a_name_may_be_one_that_no_file_of_the_host_can_have(node, kind, name):
    with USES[kind](node, name):
        pass

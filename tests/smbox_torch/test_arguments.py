"""Arguments that cannot be, of all that users make: refused by their names, nothing is made."""

from __future__ import annotations

import inspect
import math
import uuid

import pytest
import torch

import smbox_torch
from smbox.errors import ConfigError, LimitError
from smbox_torch.optimizer.options import BoxOptions
from smbox_torch.world import World

pytestmark = pytest.mark.shares

NAN = math.nan
ALONE = World(run_id=uuid.uuid4().hex)
COUNTS = [2.5, "4", True, NAN, 0, None]
TIMES = [NAN, -1, 0, "x", True, None]
WRONG = {
    **dict.fromkeys(("n_push", "n_fetch", "clusters", "bucket_nbytes", "keep"), COUNTS),
    **dict.fromkeys(("portions", "history", "micro_batches", "slots", "every"), COUNTS),
    **dict.fromkeys(("period", "workers", "groups"), COUNTS[:-1]),  # None is fine
    **dict.fromkeys(("timeout_s", "lease_s"), TIMES),
    **{key: [1.5, "0", -1, True] for key in ("rank", "update_delay", "stage")},
    "staleness": [0.5, "1", -1, None],
    "iterations": COUNTS,
    **{key: [NAN, "0.5", True, -0.1, 1.1] for key in ("moving_rate", "momentum", "rate")},
    "tolerance": [NAN, -1.0, "x", None],
    "pause_s": [NAN, -1.0, "x", math.inf],
    "lr": [NAN, -1.0, "x"],
    "settings": [{"eps": "x"}],
    **{key: ["no", 1] for key in ("overlap", "is_master")},
    "increment": [3, ""],
    "center_dtype": ["int8", torch.float32, []],
    "wire": ["int8", torch.bfloat16, []],
    "state": ["all", 3, []],
    "exchange": ["all", 3, []],
    "server": ["nope", 3],
    "rule": ["soon", 3, []],
    "schedule": ["soon", 3],
    "dtype": ["bfloat16", torch.int8],
    "source": [3, None],
    "model": ["x", 3],
    "optimizer": [None, torch.nn.Linear(2, 1), "sgd"],
    "box": [None, "tcp://127.0.0.1:1"],
    "world": ["x", 0],
}
"""Values that cannot be, by argument."""

SAID = {"settings": "eps", "source": "weights", "dtype": "dtype|type", "lr": "lr|parameters"}
SAID |= {"increment": "name", "server": "server|optimizer", "micro_batches": "micro"}
"""What the error says where it is not the argument's name."""

JOINING = (
    *("EASGD", "EAMSGD", "SEASGD", "SyncEASGD", "Downpour", "ADownpour", "MVADownpour"),
    *("MDownpour", "ServerDownpour", "SSP", "ParameterServer", "Dogwild"),
)
NEEDED = {
    **{kind: {"workers": 1} for kind in JOINING},
    "Hogwild": {},
    "HogwildPP": {"clusters": 1, "world": ALONE},
    "HybridSGD": {"world": ALONE},
    "SyncGroup": {"world": ALONE},
    "RingAllReduce": {"world": ALONE},
    "Stopping": {"rule": "fastest", "iterations": 3, "workers": 1},
    "Publisher": {"source": {"w": torch.zeros(3)}},
    "Subscriber": {},
    "Sandblaster": {"workers": 1, "portions": 1},
    "SandblasterWorker": {"rank": 0},
    "Pipeline": {"stages": [torch.nn.Linear(2, 2)], "example": torch.zeros(2, 2), "stage": 0},
    "distributed_sampler": {"dataset": [1, 2, 3]},
}
"""Arguments that each needs, beside those that many have."""

OTHERS = {
    *("BoxOptimizer", "FlatParameters", "Scalars", "Topology", "as_array", "connect"),
    *(
        "CommunicationWarning",
        "EqualGradientsWarning",
        "SlowExchangeWarning",
        "StabilityWarning",
        "Stats",
        "SandblasterStep",
    ),
}
"""Bases, parts and results."""


def takes(kind: str) -> list[str]:
    names = [*inspect.signature(getattr(smbox_torch, kind)).parameters]
    return [*names, *(BoxOptions.__annotations__ if "options" in names else ())]


CASES = [
    pytest.param(kind, argument, value, id=f"{kind}-{argument}-{value}")
    for kind in NEEDED
    for argument in takes(kind)
    for value in WRONG.get(argument, ())
    if (kind, argument) != ("RingAllReduce", "exchange")
]


def made(kind: str, box, name: str, **options):
    """Make one with all the arguments that it needs."""
    sgd = torch.optim.SGD(torch.nn.Linear(2, 1).parameters(), lr=0.1)
    common = {"optimizer": sgd, "box": box, "name": name, "parameters": [torch.zeros(3)]}
    needed = {key: value for key, value in common.items() if key in takes(kind)}
    if kind == "SyncGroup":
        del needed["name"]
    return getattr(smbox_torch, kind)(**needed | NEEDED[kind] | options)


@pytest.mark.timeout(30)
@pytest.mark.parametrize(("kind", "argument", "value"), CASES)
def test_an_argument_that_cannot_be_is_refused_and_nothing_is_made(
    node, run, kind, argument, value
):
    before = node.regions()
    said = SAID.get(argument, argument)
    with pytest.raises((TypeError, ConfigError, LimitError), match=said):
        made(kind, node, run, **{argument: value})
    assert node.regions() == before


def test_all_public_names_are_tried():
    assert {*smbox_torch.__all__} == NEEDED.keys() | OTHERS
    assert len(CASES) > 500


def tied_by_data() -> torch.nn.Module:
    model = torch.nn.Sequential(torch.nn.Embedding(4, 2), torch.nn.Linear(2, 4, bias=False))
    model[1].weight.data = model[0].weight.data
    return model


def overlapping() -> torch.nn.Module:
    model, memory = torch.nn.Module(), torch.zeros(6)
    model.one, model.other = (torch.nn.Parameter(memory[at : at + 4]) for at in (0, 2))
    return model


@torch.inference_mode()
def of_inference() -> torch.nn.Module:
    return torch.nn.Linear(2, 1)


def of_layout(layout: torch.layout) -> torch.nn.Module:
    model = torch.nn.Linear(2, 2)
    model.weight = torch.nn.Parameter(torch.eye(2).to_sparse(layout=layout))
    return model


@pytest.mark.filterwarnings("ignore:Sparse CSR")  # torch's own: it is in beta
@pytest.mark.parametrize(
    ("model", "said"),
    [
        (lambda: of_layout(torch.sparse_coo), "not dense"),
        (lambda: of_layout(torch.sparse_csr), "not dense"),
        (tied_by_data, "share memory"),
        (overlapping, "share memory"),
        (lambda: torch.nn.LazyLinear(2), "no shape"),
        (of_inference, "inference_mode"),
    ],
)
@pytest.mark.parametrize(
    "kind", [kind for kind in NEEDED if {"optimizer", "parameters"} & {*takes(kind)}]
)
def test_parameters_that_wrapping_would_part_or_cannot_write_are_refused(
    node, run, kind, model, said
):
    before, parameters = node.regions(), list(model().parameters())
    given = {
        "optimizer": torch.optim.SGD(parameters, lr=0.1),
        "parameters": parameters,
    }
    with pytest.raises(ConfigError, match=said):
        made(kind, node, run, **{key: given[key] for key in given if key in takes(kind)})
    assert node.regions() == before


AVERAGING = ("SyncGroup", "RingAllReduce", "ParameterServer", "HybridSGD")


@pytest.mark.parametrize(
    ("buffer", "said"),
    [
        (torch.eye(2).to_sparse(), "sparse or quantized"),
        (torch.eye(2).to(torch.float8_e4m3fn), None),
        (torch.empty(2, device="meta"), "meta"),
    ],
)
@pytest.mark.parametrize(
    "kind", [kind for kind in NEEDED if {"optimizer", "model"} <= {*takes(kind)}]
)
def test_buffers_that_cannot_be_shared_stay_the_workers_own_or_are_refused(
    node, run, kind, buffer, said
):
    model = torch.nn.Linear(2, 1)
    model.register_buffer("own", buffer)
    options = {"optimizer": torch.optim.SGD(model.parameters(), lr=0.1), "model": model}
    if said == "meta" or (said and kind in AVERAGING):
        with pytest.raises(ConfigError, match=said):
            made(kind, node, run, **options)
        return
    with made(kind, node, run, **options) as optimizer:
        model(torch.ones(2)).backward()
        optimizer.step()
        optimizer.load_state_dict(optimizer.state_dict())
    assert model.own is buffer


def test_a_number_too_large_for_a_float_is_refused(node, run):
    with pytest.raises(ConfigError, match="moving_rate is too large"):
        made("EASGD", node, run, moving_rate=10**400)


def test_nothing_is_wrapped_in_inference_mode(node, run):
    with torch.inference_mode(), pytest.raises(ConfigError, match="inference_mode"):
        made("EASGD", node, run)


def test_parts_of_one_tensor_that_share_no_element_are_parameters(node, run):
    memory = torch.arange(8.0).view(2, 4)
    parts = [memory[0], memory[1, :2], memory[1, 2:], memory[0, 2:2]]
    parameters = [torch.nn.Parameter(part) for part in parts]
    halves = torch.zeros(3, 4)
    parameters += [torch.nn.Parameter(halves[:, at : at + 2]) for at in (0, 2)]
    with made("EASGD", node, run, optimizer=torch.optim.SGD(parameters, lr=0.1)):
        assert [each.tolist() for each in parameters[:4]] == [each.tolist() for each in parts]


@pytest.mark.parametrize(
    "optimizer",
    [
        lambda x: torch.optim.Adam(x, lr=0.1),
        lambda x: torch.optim.SGD(x, lr=0.1, momentum=0.9),
    ],
    ids=["Adam", "momentum"],
)
@pytest.mark.parametrize("kind", ["EAMSGD", "MDownpour"])
def test_an_algorithm_with_its_own_momentum_takes_plain_sgd_only(node, run, kind, optimizer):
    before = node.regions()
    inner = optimizer(torch.nn.Linear(2, 1).parameters())
    with pytest.raises(ConfigError, match=f"{kind} .*own momentum"):
        made(kind, node, run, optimizer=inner)
    assert node.regions() == before


@pytest.mark.parametrize("period", [2.5, "4", True, NAN, 0, None])
def test_scalars_have_a_whole_period(node, run, period):
    with (
        made("EASGD", node, run) as optimizer,
        pytest.raises((TypeError, ConfigError), match="period"),
    ):
        smbox_torch.Scalars(optimizer, None, period=period)

from __future__ import annotations

import re

import pytest
import torch

import smbox
from smbox.errors import ConfigError, LayoutMismatchError
from smbox.testing.model_box import ModelBox
from smbox_torch import (
    EASGD,
    Dogwild,
    Downpour,
    Hogwild,
    HogwildPP,
    MDownpour,
    MVADownpour,
    ParameterServer,
    ServerDownpour,
    SyncEASGD,
)
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
            assert first.member.read().count == 1
            del refused
        first.close()


def test_whoever_finds_another_center_has_left():
    with smbox.local("32MiB") as box:
        watcher = smbox.join(box, "run")
        box.create("run.float32", shape=7, dtype="float32")
        with pytest.raises(LayoutMismatchError) as refused:
            EASGD(torch.optim.SGD([parameter()], lr=0.1), box, "run", workers=2)
        assert watcher.read().count == 1
        del refused


@pytest.mark.parametrize("kind", [EASGD, MDownpour, MVADownpour, Dogwild, ParameterServer])
def test_a_run_cannot_have_the_name_of_a_part_of_another_run(kind):
    box, model = ModelBox(), network()
    with kind(sgd(*model.parameters()), box, "a.run", workers=1, model=model):
        names = [re.fullmatch(r"(a\.run\..+)\.float32", r.name) for r in box.regions()]
    parts = {found[1] for found in names if found}
    assert "a.run.buffers" in parts
    for part in {*parts, "a.run.stop"}:  # Stopping joins it as a run
        with pytest.raises(ConfigError, match=r"a part of the run 'a\.run': choose another"):
            EASGD(sgd(parameter()), box, part, workers=1)


def test_nor_that_of_a_cluster_or_its_state(open_box, worlds):
    net, box = network(), open_box()
    adam, settings = torch.optim.Adam(net.parameters()), {"clusters": 1, "state": "shared"}
    with HogwildPP(adam, box, "a.run", model=net, world=worlds(1, 1)[0], **settings):
        names = [region.name for region in box.regions()]
    parts = {name.rpartition(".")[0] for name in names} - {"a.run"}
    assert {"a.run.ring", "a.run.cluster0", "a.run.cluster0.state.exp_avg"} <= parts
    for part in parts:
        with pytest.raises(ConfigError, match=r"a part of the run 'a\.run"):
            Hogwild(sgd(parameter()), open_box(), part)


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


def sgd(*parameters: torch.nn.Parameter) -> torch.optim.SGD:
    return torch.optim.SGD(parameters, lr=0.1)


def network() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2))


DIFFERING = {
    "server": (ServerDownpour, {"server": "adagrad"}, {"server": "adam"}, "adam .* adagrad"),
    "beta": (
        *(ServerDownpour, {"server": "adam"}, {"server": "adam", "settings": {"beta1": 0.5}}),
        "beta1 0.5 here and 0.9",
    ),
    "first": (
        *(ServerDownpour, {}, {"settings": {"initial_accumulator_value": 1}}),
        "initial_accumulator_value 1.0 here and 0.1",
    ),
    "momentum": (MDownpour, {"momentum": 0.9}, {"momentum": 0.5}, "momentum 0.5 here and 0.9"),
    "rate": (MVADownpour, {}, {"rate": 1}, "rate 1.0 here and 0.001"),
    "period": (SyncEASGD, {"period": 4}, {"period": 2}, "period 2 here and 4"),
    "model": (EASGD, {"model": network()}, {}, "statistics 0 here and 2"),
    "no model": (Downpour, {}, {"model": network()}, "statistics 2 here and 0"),
}


@pytest.mark.parametrize(("kind", "first", "other", "said"), DIFFERING.values(), ids=DIFFERING)
def test_workers_of_one_run_agree_on_what_they_share(kind, first, other, said):
    def inner(given):
        return torch.optim.SGD(given.get("model", network()).parameters(), lr=0.1)

    box = ModelBox()
    kind(inner(first), box, "run", workers=2, rank=0, **first)
    before = [region.name for region in box.regions()]
    with pytest.raises(ConfigError, match=said):
        kind(inner(other), box, "run", workers=2, rank=1, **other)
    assert [region.name for region in box.regions()] == before
    kind(inner(first), box, "run", workers=2, rank=1, **first)


def test_settings_by_default_are_those_that_are_given():
    box, settings = ModelBox(), {"beta1": 0.9, "eps": 1e-8}
    ServerDownpour(sgd(parameter()), box, "run", workers=2, rank=0, server="adam")
    more = {"server": "adam", "settings": settings}
    ServerDownpour(sgd(parameter()), box, "run", workers=2, rank=1, **more)


def test_workers_of_hogwild_agree_on_the_state(open_box):
    Hogwild(sgd(parameter()), open_box(), "run")
    with pytest.raises(ConfigError, match="state shared here and private"):
        Hogwild(
            torch.optim.SGD([parameter()], lr=0.1, momentum=0.9),
            open_box(),
            "run",
            state="shared",
        )

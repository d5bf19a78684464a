"""Models that are changed between two steps: each change counts once, or is refused."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from smbox.errors import ConfigError
from smbox.testing.model_box import ModelBox
from smbox_torch import (
    EAMSGD,
    EASGD,
    SEASGD,
    SSP,
    ADownpour,
    Dogwild,
    Downpour,
    Hogwild,
    HogwildPP,
    HybridSGD,
    MDownpour,
    MVADownpour,
    RingAllReduce,
    ServerDownpour,
    SyncEASGD,
    SyncGroup,
)

torch.set_num_threads(1)


def by_loading_ten(model: torch.nn.Module) -> None:
    model.load_state_dict({"weight": torch.full((1, 4), 10.0)})


def by_clipping_at_ten(model: torch.nn.Module) -> None:
    """As WGAN's loop clips weights; torch does not count writes by ``data``."""
    model.weight.data.clamp_(min=10.0)


def ones() -> torch.nn.Linear:
    model = torch.nn.Linear(4, 1, bias=False)
    with torch.no_grad():
        model.weight.fill_(1.0)
    return model


def changed_after_two_steps(
    opt: torch.optim.Optimizer,
    model: torch.nn.Module,
    change: Callable[[torch.nn.Module], None],
    done: Callable[[], object] = lambda: None,
) -> float:
    """Do eight steps of lr 0, and change the model from 1 to 10 after two."""
    for step in range(8):
        if step == 2:
            change(model)
        opt.zero_grad()
        model(torch.ones(2, 4)).mean().backward()
        opt.step()
        done()
    assert opt.steps == 8
    found = model.weight.detach()
    assert (found == found[0, 0]).all()
    return found[0, 0].item()


ELASTIC = [EASGD, EAMSGD, SEASGD, SyncEASGD]
APART = {"n_push": 3, "n_fetch": 2}
PUSHING = [(Downpour, APART), (ServerDownpour, APART), (Downpour, {}), (ServerDownpour, {})]
PUSHING += [(MDownpour, {}), (SSP, {}), (ADownpour, {}), (MVADownpour, {})]
PUSHING += [(kind, {"period": 3}) for kind in (SSP, ADownpour, MVADownpour)]
BETWEEN = [by_loading_ten, by_clipping_at_ten]


@pytest.mark.parametrize("change", BETWEEN)
@pytest.mark.parametrize("kind", ELASTIC)
def test_a_change_between_steps_is_the_workers_own_move(kind: type, change):
    box, model = ModelBox(), ones()
    sgd = torch.optim.SGD(model.parameters(), lr=0.0)
    more = {"momentum": 0.5} if kind is EAMSGD else {}
    opt = kind(sgd, box, "run", workers=1, moving_rate=0.5, **more)
    x = changed_after_two_steps(opt, model, change)
    opt.close(exchange=False)
    c = box.attach("run.float32").get()[0]
    assert 1 < c < 10
    assert x + c == pytest.approx(11)  # nothing is lost, nothing is multiplied


@pytest.mark.parametrize("change", BETWEEN)
@pytest.mark.parametrize(("kind", "settings"), PUSHING)
def test_a_change_between_steps_is_pushed_once(kind: type, settings: dict, change):
    box, model = ModelBox(), ones()
    sgd = torch.optim.SGD(model.parameters(), lr=0.0)
    opt = kind(sgd, box, "run", workers=1, **settings)
    found = changed_after_two_steps(opt, model, change)
    opt.close()
    assert (found, box.attach("run.float32").get()[0]) == (10, 10)
    assert opt.stats().staleness.keys() == {0}  # no other worker has exchanged


@pytest.mark.parametrize("change", BETWEEN)
@pytest.mark.parametrize("kind", [SyncGroup, RingAllReduce, HybridSGD, Hogwild, HogwildPP])
def test_a_change_between_steps_is_kept_where_there_is_one_model(
    kind: type, change, open_box, worlds
):
    args = () if kind in {SyncGroup, RingAllReduce} else (open_box(), "run")
    more = {"clusters": 1} if kind is HogwildPP else {}
    more |= {"period": 100} if kind is HybridSGD else {}
    more |= {} if kind is Hogwild else {"world": worlds(1, 1)[0]}
    model = ones()
    with kind(torch.optim.SGD(model.parameters(), lr=0.0), *args, **more) as opt:
        assert changed_after_two_steps(opt, model, change) == 10


@pytest.mark.parametrize("change", BETWEEN)
def test_a_change_of_a_master_is_everybodys(change):
    box, model = ModelBox(), ones()
    sgd = torch.optim.SGD(model.parameters(), lr=0.0)
    opt = Dogwild(sgd, box, "run", workers=1, is_master=True, pause_s=None)
    found = changed_after_two_steps(opt, model, change, opt.stream)
    assert (found, box.attach("run.float32").get()[0]) == (10, 10)


@pytest.mark.parametrize("steps", [0, 2])
def test_a_change_that_a_stream_would_overwrite_is_refused(steps: int):
    box, model = ModelBox(), ones()
    sgd = torch.optim.SGD(model.parameters(), lr=0.0)
    opt = Dogwild(sgd, box, "run", workers=2, is_master=False, pause_s=None)
    for _ in range(steps):
        train_one(opt, model)
    by_loading_ten(model)
    for _ in range(2):
        with pytest.raises(ConfigError, match="change the master's"):
            train_one(opt, model)
    opt.center_into(model)
    train_one(opt, model)
    assert opt.steps == steps + 1


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        (Downpour, {"n_push": 4, "n_fetch": 4}),
        (SSP, {"period": 4}),
        (ADownpour, {"period": 4}),
        (MVADownpour, {"period": 4}),
    ],
)
def test_center_into_the_own_model_loses_no_step(kind: type, settings: dict[str, int]):
    box, model = ModelBox(), ones()
    sgd = torch.optim.SGD(model.parameters(), lr=1.0)
    opt = kind(sgd, box, "run", workers=1, **settings)
    for _ in range(2):  # their update, -2 for each weight, was not pushed yet
        opt.zero_grad()
        model.weight.sum().backward()
        opt.step()
    opt.center_into(model)
    assert model.weight[0, 0] == 1
    opt.close()
    assert box.attach("run.float32").get()[0] == -1


def train_one(opt: torch.optim.Optimizer, model: torch.nn.Module) -> None:
    model(torch.ones(2, 4)).mean().backward()
    opt.step()


@pytest.mark.parametrize("kind", [MDownpour, ServerDownpour])
def test_the_bytes_of_a_change_are_counted(kind: type):
    counts = []
    for change in (by_clipping_at_ten, lambda _: None):
        model = ones()
        sgd = torch.optim.SGD(model.parameters(), lr=0.0)
        opt = kind(sgd, ModelBox(), "run", workers=1)
        changed_after_two_steps(opt, model, change)
        counts.append(opt.stats().nbytes)
        opt.close()
    assert counts[0] - counts[1] == 4 * 4  # four float32, sent once

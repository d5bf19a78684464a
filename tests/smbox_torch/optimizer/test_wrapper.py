from __future__ import annotations

import io

import pytest
import torch

from smbox.errors import ConfigError
from smbox.testing.model_box import ModelBox
from smbox_torch.optimizer.wrapper import BoxOptimizer

torch.set_num_threads(1)


class Plain(BoxOptimizer):
    """Steps, and exchanges nothing."""

    def _advance(self) -> None:
        with self._exchanging(8):
            self._local_step()


def network() -> torch.nn.Sequential:
    torch.manual_seed(1)
    return torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3))


def made(box: ModelBox | None = None, **settings) -> tuple[torch.nn.Module, Plain]:
    model = network()
    inner = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return model, Plain(inner, box or ModelBox(), "run", **({"workers": 1} | settings))


def train(model: torch.nn.Module, opt: torch.optim.Optimizer, steps: int = 1) -> None:
    for t in range(steps):
        opt.zero_grad()
        model(torch.ones(4, 2) * torch.arange(4.0)[:, None] * (t + 1)).square().sum().backward()
        opt.step()


def weights(model: torch.nn.Module) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def test_wrapped_training_is_training():
    model, opt = made()
    train(model, opt, 3)
    plain = network()
    train(plain, torch.optim.SGD(plain.parameters(), lr=0.1, momentum=0.9), 3)
    assert torch.equal(weights(model), weights(plain))


@pytest.mark.parametrize(
    "schedule",
    [
        lambda opt: torch.optim.lr_scheduler.StepLR(opt, 1, gamma=0.5),
        lambda opt: torch.optim.lr_scheduler.OneCycleLR(opt, max_lr=0.5, total_steps=9),
        lambda opt: torch.optim.lr_scheduler.CosineAnnealingLR(opt, 5),
    ],
)
def test_any_scheduler_works_on_it(schedule):
    model, opt = made()
    scheduler = schedule(opt)
    for _ in range(3):
        train(model, opt)
        scheduler.step()
    assert opt.inner.param_groups[0]["lr"] == scheduler.get_last_lr()[0]
    assert opt.param_groups is opt.inner.param_groups


def test_it_is_an_optimizer_with_hooks_and_a_closure():
    model, opt = made()
    calls = []
    opt.register_step_post_hook(lambda *_: calls.append("after"))

    def closure() -> float:
        opt.zero_grad()
        loss = model(torch.ones(2, 2)).sum()
        loss.backward()
        return loss.item()

    assert isinstance(opt.step(closure), float)
    assert calls == ["after"]
    assert isinstance(opt, torch.optim.Optimizer)


def test_gradients_of_several_backward_passes_add_up():
    one, first = made()
    two, second = made()
    x = torch.randn(4, 2)
    for _ in range(2):
        one(x).sum().backward()
    two(x).sum().backward()
    for p in two.parameters():
        p.grad *= 2
    first.step()
    second.step()
    assert torch.allclose(weights(one), weights(two))


def test_flat_gradients_stay_flat():
    model, opt = made(gradients=True)
    train(model, opt, 2)
    gradient = opt.flat.buffers[0].gradient
    assert gradient is not None
    assert next(model.parameters()).grad.data_ptr() == gradient.data_ptr()


def test_a_state_survives_being_saved():
    model, opt = made()
    train(model, opt, 2)
    file = io.BytesIO()
    torch.save(opt.state_dict(), file)
    file.seek(0)
    other, again = made()
    other.load_state_dict(model.state_dict())
    again.load_state_dict(torch.load(file, weights_only=True))
    assert torch.equal(weights(other), weights(model))
    train(model, opt, 2)
    train(other, again, 2)
    assert torch.equal(weights(other), weights(model))
    assert again.steps == 4


def test_a_state_has_the_workers_own_batch_norm():
    model = network()
    opt = Plain(
        torch.optim.SGD(model.parameters(), lr=0.1), ModelBox(), "run", model=model, workers=1
    )
    train(model, opt, 2)
    saved = opt.state_dict()
    other = network()
    again = Plain(
        torch.optim.SGD(other.parameters(), lr=0.1), ModelBox(), "run", model=other, workers=1
    )
    again.load_state_dict(saved)
    assert other[1].running_mean.tolist() == model[1].running_mean.tolist() != [0.0] * 3
    assert other[1].num_batches_tracked == 2
    train(model, opt)
    assert saved["counts"][0] == 2  # it is a copy


class Pending(Plain):
    """Has an exchange under way that ends when its state is asked for."""

    def _extra_state(self):
        for buffer, region in self.center:
            region.put(torch.full_like(buffer.flat, 7.0))
        return {}


def test_a_state_holds_the_center_after_what_is_under_way():
    model = network()
    opt = Pending(torch.optim.SGD(model.parameters(), lr=0.1), ModelBox(), "run", workers=1)
    (center,) = opt.state_dict()["centers"]
    assert all((values == 7).all() for values in center.values())


def test_a_state_of_another_algorithm_is_refused():
    _, opt = made()
    with pytest.raises(ConfigError, match="another algorithm"):
        opt.load_state_dict({**opt.state_dict(), "algorithm": "SGD"})


def test_moving_the_model_is_noticed_before_an_exchange():
    model, opt = made()
    model.double()
    with pytest.raises(ConfigError, match="not in the flat buffer"):
        train_double(model, opt)


@pytest.mark.parametrize("end", ["eval", "finish"])
def test_a_model_that_was_moved_is_not_said_to_hold_the_center(end: str):
    model, opt = made()
    train(model, opt)
    model.double()
    for _ in range(2):
        with pytest.raises(ConfigError, match="not in the flat buffer"):
            getattr(opt, end)()
    opt.center_into(model)  # it can still be filled
    opt.close()


def test_moving_a_model_with_flat_gradients_is_noticed():
    model, opt = made(gradients=True)
    train(model, opt)
    model.double()
    with pytest.raises(ConfigError, match="not in the flat buffer"):
        opt.step()


def test_buffers_that_another_wrapper_of_the_model_took_are_noticed():
    model, box = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2)), ModelBox()
    first, _ = (
        Plain(torch.optim.SGD(part.parameters(), lr=0.1), box, name, model=model, workers=1)
        for part, name in zip(model, ("first", "second"), strict=True)
    )
    model(torch.randn(4, 2)).sum().backward()
    with pytest.raises(ConfigError, match="pass model= to one optimizer"):
        first.step()


def train_double(model: torch.nn.Module, opt: Plain) -> None:
    model(torch.ones(2, 2, dtype=torch.float64)).sum().backward()
    opt.step()


def test_groups_cannot_be_added():
    _, opt = made()
    with pytest.raises(ConfigError):
        opt.add_param_group({"params": [torch.zeros(1)]})


def test_it_counts_and_closes():
    model, opt = made()
    with opt:
        train(model, opt, 2)
    stats = opt.stats()
    assert (stats.steps, stats.exchanges, stats.nbytes) == (2, 2, 16)


def test_the_base_itself_takes_no_step():
    model = network()
    opt = BoxOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1), ModelBox(), "run", workers=1
    )
    with pytest.raises(NotImplementedError):
        opt.step()


def test_a_buffer_that_became_another_tensor_is_told():
    model = network()
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    opt = Plain(sgd, ModelBox(), "run", model=model, workers=1)
    train(model, opt)
    model[1].running_mean = 0.5 * model[1].running_mean
    with pytest.raises(ConfigError, match="in place"):
        train(model, opt)


def test_a_parameter_that_was_replaced_is_told_before_an_exchange():
    box, model = ModelBox(), network()
    opt = Plain(torch.optim.SGD(model.parameters(), lr=0.1), box, "run", workers=1, model=model)
    train(model, opt)
    model[0].weight = torch.nn.Parameter(torch.ones(3, 2))
    began = len(box.log)
    with pytest.raises(ConfigError, match="was replaced"):
        train(model, opt)
    assert len(box.log) == began


def test_parameters_that_cannot_be_exchanged_create_nothing():
    box = ModelBox()
    for other in (
        torch.zeros(2, dtype=torch.complex64),
        torch.zeros(2, dtype=torch.int32),
        torch.zeros(2, device="meta"),
    ):
        own = [
            torch.nn.Parameter(torch.ones(2)),
            torch.nn.Parameter(other, requires_grad=False),
        ]
        with pytest.raises(ConfigError):
            Plain(torch.optim.SGD(own, lr=0.1), box, "run", workers=1)
    assert box.regions() == []

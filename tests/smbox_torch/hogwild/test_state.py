from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch

from smbox.box import Box
from smbox.errors import ConfigError, LayoutMismatchError, RequestTimeoutError
from smbox.memory.layout import Consistency
from smbox.testing.solo import solo_box, solo_boxes
from smbox_torch.hogwild.hogwild import Hogwild
from smbox_torch.hogwild.state import SharedState, share
from smbox_torch.workers import phase

KINDS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.1, initial_accumulator_value=0.5),
    "adam": lambda p: torch.optim.Adam(p, lr=0.1, amsgrad=True),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.1),
}


@pytest.fixture
def box() -> Iterator[Box]:
    with solo_boxes(32 << 20) as opener, solo_box(opener) as made:
        yield made


def weights() -> list[torch.nn.Parameter]:
    return [torch.nn.Parameter(torch.ones(2, 3)), torch.nn.Parameter(torch.full((4,), 2.0))]


def step(
    optimizer: torch.optim.Optimizer, parameters: list[torch.nn.Parameter], t: int
) -> None:
    for parameter in parameters:
        parameter.grad = torch.full_like(parameter, float(t + 1))
    optimizer.step()


def test_tensors_are_shared_by_name_whatever_their_dtype(box: Box):
    tensors = [torch.ones(2, 3), torch.ones(4, dtype=torch.bfloat16), torch.zeros(())]
    mine = share(box, "t", tensors)
    others = share(box, "t", [torch.full_like(tensor, 9) for tensor in tensors])
    for view, other, tensor in zip(mine, others, tensors, strict=True):
        assert torch.equal(view, tensor)
        assert view.dtype == tensor.dtype
        other.fill_(5)
        assert view.unique().tolist() == [5]
        assert view.untyped_storage().nbytes() == view.nbytes
    assert {info.name for info in box.regions()} == {"t.float32", "t.bfloat16"}


def test_another_layout_is_refused(box: Box):
    share(box, "t", [torch.ones(2)])
    with pytest.raises(LayoutMismatchError):
        share(box, "t", [torch.ones(3)])


@pytest.mark.parametrize("kind", KINDS)
def test_two_optimizers_on_one_state_are_one_optimizer(box: Box, kind: str):
    alone = weights()
    plain = KINDS[kind](alone)
    both = weights()
    pair = [KINDS[kind](both) for _ in range(2)]
    for each in pair:
        SharedState(box, "s", each).install()
    for t in range(6):
        step(plain, alone, t)
        step(pair[t % 2], both, t)
    for mine, expected in zip(both, alone, strict=True):
        assert torch.equal(mine, expected)
        for key, values in plain.state[expected].items():
            assert torch.equal(pair[0].state[mine][key], values), key


def test_a_loaded_state_goes_to_the_shared_tensors(box: Box):
    saved = KINDS["adam"](weights())
    step(saved, saved.param_groups[0]["params"], 3)
    first, second = (KINDS["adam"](weights()) for _ in range(2))
    states = [SharedState(box, "s", each) for each in (first, second)]
    first.load_state_dict(saved.state_dict())
    states[0].store()
    for state in states:
        state.install()
    for optimizer in (first, second):
        parameter = optimizer.param_groups[0]["params"][0]
        assert optimizer.state[parameter]["step"].item() == 1
        assert optimizer.state[parameter]["exp_avg"].max().item() > 0
    states[1].detach()
    step(first, first.param_groups[0]["params"], 0)
    assert second.state[parameter]["step"].item() == 1


def test_plain_sgd_shares_nothing(box: Box):
    SharedState(box, "s", torch.optim.SGD(weights(), lr=0.1))
    assert box.regions() == []


@pytest.mark.parametrize(
    "optimizer",
    [
        torch.optim.RMSprop(weights()),
        torch.optim.SGD(weights(), lr=0.1, momentum=0.9, dampening=0.1),
    ],
)
def test_what_cannot_be_shared_is_refused(box: Box, optimizer: torch.optim.Optimizer):
    with pytest.raises(ConfigError, match="private"):
        SharedState(box, "s", optimizer)


def test_state_that_would_begin_after_the_wrapping_is_refused(box: Box):
    frozen = weights()
    frozen[0].requires_grad_(False)
    thawed = torch.optim.Adam(frozen)
    cycled = torch.optim.SGD(weights(), lr=0.1)
    states = [SharedState(box, name, each) for name, each in (("a", thawed), ("s", cycled))]
    for state in states:
        state.install()
        state.check()
    frozen[0].requires_grad_(True)
    torch.optim.lr_scheduler.OneCycleLR(cycled, max_lr=0.5, total_steps=9)
    for state in states:
        with pytest.raises(ConfigError, match="private"):
            state.check()


def test_a_state_that_was_cleared_is_refused(box: Box):
    parameters = weights()
    optimizer = KINDS["adam"](parameters)
    state = SharedState(box, "s", optimizer)
    state.install()
    step(optimizer, parameters, 0)
    state.check()
    optimizer.state.clear()  # the next step would begin a private state
    with pytest.raises(ConfigError, match="in place"):
        state.check()
    state.install()
    state.check()


def test_a_state_that_was_replaced_is_refused(box: Box):
    parameters = weights()
    optimizer = KINDS["momentum"](parameters)
    state = SharedState(box, "s", optimizer)
    state.install()
    optimizer.state[parameters[1]]["momentum_buffer"] = torch.zeros(4)
    with pytest.raises(ConfigError, match="replaced"):
        state.check()


def test_a_loaded_state_without_momentum_leaves_the_shared_one(box: Box):
    optimizer = KINDS["momentum"](weights())
    state = SharedState(box, "s", optimizer)
    state.install()
    optimizer.load_state_dict(KINDS["momentum"](weights()).state_dict())  # of before its steps
    state.store()
    state.install()
    state.check()


def test_groups_may_keep_different_states(box: Box):
    plain, heavy = weights()
    groups = [{"params": [plain], "momentum": 0.0}, {"params": [heavy], "momentum": 0.9}]
    sgd = torch.optim.SGD(groups, lr=0.1)
    state = SharedState(box, "s", sgd)
    state.install()
    state.check()
    assert [list(sgd.state[each]) for each in (plain, heavy)] == [[], ["momentum_buffer"]]
    SharedState(box, "t", torch.optim.SGD(weights(), lr=0.1, dampening=0.1))  # without momentum


def test_shared_tensors_have_no_guarded_stores(box: Box):
    share(box, "t", [torch.ones(2)])
    assert [info.consistency for info in box.regions()] == [Consistency.NONE]


def worker(box: Box, state: str = "private") -> tuple[list[torch.nn.Parameter], Hogwild]:
    parameters = weights()
    return parameters, Hogwild(KINDS["adam"](parameters), box, "run", state=state)


def test_state_that_is_no_longer_shared_ends_the_next_step(box: Box):
    parameters, optimizer = worker(box, "shared")
    with optimizer:
        optimizer.inner.state.clear()
        with pytest.raises(ConfigError, match="was removed"):
            step(optimizer, parameters, 0)
        assert parameters[0].unique().tolist() == [1.0]


def test_a_checkpoint_that_is_loaded_after_the_first_step_restores_nothing(box: Box):
    (first, one), (_, two) = worker(box), worker(box)
    with one, two:
        saved = two.state_dict() | {"origin": "an earlier run"}
        step(one, first, 0)
        before = first[0].tolist()
        two.load_state_dict(saved)
        assert first[0].tolist() == before
        assert (one.member.progress, two.member.progress) == (1, 0)
        step(one, first, 1)  # so soon that it is not told
    assert one.member.progress == 2


def test_a_worker_that_does_not_restore_must_not_load_the_model_beside_its_state(box: Box):
    (first, one), (second, two) = worker(box), worker(box)
    with one, two:
        saved = one.state_dict() | {"origin": "an earlier run"}
        for parameters, optimizer in ((first, one), (second, two)):
            with torch.no_grad():
                parameters[0].fill_(1)
            optimizer.load_state_dict(saved)
        step(one, first, 0)
        with pytest.raises(ConfigError, match="of the wrapped optimizer alone"):
            step(two, second, 0)


def test_no_step_is_done_while_another_worker_restores(box: Box, monkeypatch):
    monkeypatch.setattr(phase, "RESTORE_TIMEOUT_S", 0.05)
    parameters, optimizer = worker(box)
    with optimizer:
        restoring = phase.Phase(box, "run").restoring()
        with restoring, pytest.raises(RequestTimeoutError, match="began to write"):
            step(optimizer, parameters, 0)
        assert parameters[0].unique().tolist() == [1.0]

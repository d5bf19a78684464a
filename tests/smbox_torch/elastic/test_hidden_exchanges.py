"""Where overlap=True lets an exchange pass behind the next gradient."""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np
import pytest
import torch

import smbox
from smbox.errors import ConfigError
from smbox.testing.model_box import ModelBox
from smbox.testing.quadratic import LR, Descent, start
from smbox_torch import EAMSGD, EASGD

torch.set_num_threads(1)


@pytest.mark.parametrize("kind", [EASGD, EAMSGD])
@pytest.mark.parametrize("is_mapped", [False, True])
def test_only_an_exchange_over_messages_passes_behind_the_gradient(
    kind: type, open_box: Callable[[], smbox.Box], *, is_mapped: bool
):
    box = open_box() if is_mapped else ModelBox()
    found = []
    for overlap in (False, True):
        x = torch.nn.Parameter(torch.from_numpy(start()))
        name = f"run-{overlap}"
        sgd = torch.optim.SGD([x], lr=LR)
        one = Descent(0, x, kind(sgd, box, name, period=2, workers=1, overlap=overlap))
        center = box.attach(f"{name}.float32")
        began = center.version
        one.run(2)  # one exchange; the next step exchanges, too
        one.optimizer.close(exchange=False)
        assert center.version - began == (2 if overlap and not is_mapped else 1)
        found.append(one.values())
    assert np.array_equal(found[0], found[1]) is is_mapped


def test_an_exchange_during_an_evaluation_is_refused_and_the_pending_move_stays():
    found = []
    for evaluates in (False, True):
        x, box = torch.nn.Parameter(torch.from_numpy(start())), ModelBox()
        sgd = torch.optim.SGD([x], lr=LR)
        one = Descent(0, x, EASGD(sgd, box, "run", workers=1, overlap=True))
        one.run(3)
        if evaluates:
            one.optimizer.eval()
            with pytest.raises(ConfigError, match="holds the center"):
                one.optimizer.exchange()
            one.optimizer.train()
        one.run(3)
        one.optimizer.close()
        found.append((one.values().tolist(), box.attach("run.float32").get().tolist()))
    assert found[0] == found[1]


def test_later_exchanges_do_not_change_a_state_that_was_taken():
    x = torch.nn.Parameter(torch.from_numpy(start()))
    sgd = torch.optim.SGD([x], lr=LR)
    one = Descent(0, x, EASGD(sgd, ModelBox(), "run", workers=1, overlap=True))
    one.run(3)
    (move,) = one.optimizer.state_dict()["extra"]["moves"]
    before = move.clone()
    one.run(3)
    one.optimizer.close()
    assert torch.equal(move, before)


@pytest.mark.parametrize("kind", [EASGD, EAMSGD])
def test_a_close_whose_last_exchange_failed_ends_the_thread(kind: type):
    before = threading.active_count()
    x, box = torch.nn.Parameter(torch.from_numpy(start())), ModelBox()
    one = Descent(0, x, kind(torch.optim.SGD([x], lr=LR), box, "run", workers=1, overlap=True))
    one.optimizer.request_moves = lambda xs, moves: int("none")
    one.optimizer.exchange()
    with pytest.raises(ValueError, match="none"):
        one.optimizer.close(exchange=False)
    assert threading.active_count() == before

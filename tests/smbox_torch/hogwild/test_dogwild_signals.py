from __future__ import annotations

import signal

import pytest
import torch

from smbox.errors import ConfigError
from smbox.testing.model_box import ModelBox
from smbox_torch.hogwild.dogwild import Dogwild


class Struck(torch.Tensor):
    """A gradient that raises SIGUSR1 as the solver copies it."""

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        if function is torch.Tensor.to:
            signal.raise_signal(signal.SIGUSR1)
        return super().__torch_function__(function, types, args, kwargs)


@pytest.mark.parametrize("pause_s", [None, 0.0])
def test_calls_of_a_signal_handler_inside_a_step_are_refused(pause_s):
    """They waited for ever: for the step, or for a turn of the streamer that waits for it."""
    x = torch.nn.Parameter(torch.zeros(4))
    sgd = torch.optim.SGD([x], lr=1.0)
    opt = Dogwild(sgd, ModelBox(), "run", is_master=False, workers=1, pause_s=pause_s)
    state, refused = opt.state_dict(), []

    def handler(*_):
        for call in (opt.state_dict, lambda: opt.load_state_dict(state), opt.finish, opt.close):
            with pytest.raises(ConfigError, match="set a flag and return"):
                call()
            refused.append(call)

    before = signal.signal(signal.SIGUSR1, handler)
    x.grad = torch.ones(4).as_subclass(Struck)
    opt.step()
    signal.signal(signal.SIGUSR1, before)
    assert (len(refused), opt.steps) == (4, 1)
    opt.close()

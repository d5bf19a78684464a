from __future__ import annotations

import signal
import threading
import time

import pytest
import torch

from smbox.errors import ConfigError
from smbox.testing.model_box import ModelBox, ModelRegion
from smbox_torch.hogwild.dogwild import Dogwild

LONG_S = 60.0


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


def test_the_end_is_refused_in_a_signal_handler_that_the_last_pass_would_wait_for(monkeypatch):
    """The handler interrupts ``state_dict``, which excludes the streamer."""
    sgd = torch.optim.SGD([torch.nn.Parameter(torch.zeros(4))], lr=1.0)
    opt, refused = Dogwild(sgd, ModelBox(), "run", workers=1), []

    def handler() -> dict[str, object]:
        for call in (opt.finish, opt.close):
            with pytest.raises(ConfigError, match="set a flag and return"):
                call()
            refused.append(call)
        return {}

    with monkeypatch.context() as patch:
        patch.setattr(opt, "_extra_state", handler)
        opt.state_dict()
    assert len(refused) == 2
    opt.close()


def test_an_interrupt_in_the_last_pass_of_the_streamer_loses_no_gradient(monkeypatch):
    box, x = ModelBox(), torch.nn.Parameter(torch.zeros(4))
    sgd = torch.optim.SGD([x], lr=1.0)
    opt = Dogwild(sgd, box, "run", is_master=False, workers=1, pause_s=1e6)
    deadline_s = time.monotonic() + LONG_S
    while opt.stats().exchanges < 1:
        assert time.monotonic() < deadline_s
    x.grad = torch.ones(4)
    opt.step()
    release, accumulate = threading.Event(), ModelRegion.accumulate
    main = threading.main_thread().ident
    interrupt = threading.Timer(0.1, signal.pthread_kill, [main, signal.SIGINT])

    def slow(region, *args, **options):
        interrupt.start()
        assert release.wait(LONG_S)
        return accumulate(region, *args, **options)

    with monkeypatch.context() as patch:
        patch.setattr(ModelRegion, "accumulate", slow)
        with pytest.raises(KeyboardInterrupt):
            opt.finish()
    interrupt.join()
    release.set()
    opt.finish()
    assert box.attach("run.gradients.float32").get().tolist() == [1.0] * 4

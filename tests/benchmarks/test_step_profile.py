from __future__ import annotations

import sys
import time
from types import FrameType

import pytest
import step_profile
import torch
from step_profile import Profile, category_of


def framed(path: str, inner=None) -> FrameType:
    """Return a frame of a function of that file, called by this one or around ``inner``."""
    source = "def call(take):\n    x = 0\n    return take()\n"
    scope: dict = {}
    exec(compile(source, path, "exec"), scope)
    return scope["call"](inner or (lambda: sys._getframe(1)))


@pytest.mark.parametrize(
    ("path", "category"),
    [
        ("/x/smbox_torch/elastic/easgd.py", "Python"),
        ("/x/smbox_torch/model/flat.py", "copies"),
        ("/x/smbox_torch/averaging/rendezvous.py", "waiting"),
        ("/x/smbox/region.py", "exchange"),
        ("/x/torch/optim/sgd.py", "training"),
        ("/x/mine.py", "training"),
    ],
)
def test_a_file_of_the_stack_says_what_it_is(path: str, category: str):
    assert category_of(framed(path)) == category


def test_the_innermost_file_decides():
    def inside() -> FrameType:
        return framed("/x/smbox/memory/commit.py")

    assert category_of(framed("/x/smbox_torch/elastic/easgd.py", inside)) == "exchange"

    def optimizer() -> FrameType:
        return framed("/x/torch/optim/sgd.py")

    assert category_of(framed("/x/smbox_torch/optimizer/wrapper.py", optimizer)) == "training"


@pytest.mark.parametrize(
    ("path", "category"), [("mine.py", "training"), ("smbox/region.py", "exchange")]
)
def test_a_clone_may_be_called_smbox(monkeypatch, path: str, category: str):
    class Outermost:
        """A frame that nobody called."""

        f_lasti = 100
        f_code = framed(f"/x/smbox/{path}").f_code
        f_back = None

    monkeypatch.setattr(step_profile, "CLONE", "/x/smbox")
    assert category_of(Outermost()) == category


def test_the_time_before_a_call_is_the_callers():
    frame = framed("/x/smbox/region.py")

    class Begun:
        """The frame as it is when the function has only just been called."""

        f_lasti = 0
        f_code = frame.f_code
        f_back = framed("/x/smbox_torch/model/flat.py")

    assert category_of(Begun()) == "copies"


def test_each_sample_stands_for_the_time_since_the_last():
    profile = Profile()
    profile.add("copies", 2.0)
    profile.add("waiting", 5.0)
    profile.add("copies", 6.0)
    assert profile.seconds == {"copies": 3.0, "waiting": 3.0}


def test_long_calls_count_as_long_as_they_take():
    profile = Profile()
    with profile.sampling():
        began_s = time.perf_counter()
        for _ in range(20):
            torch.randn(200, 200).mm(torch.randn(200, 200))
            time.sleep(0.002)
        took_s = time.perf_counter() - began_s
    assert profile.seconds["training"] == pytest.approx(took_s, rel=0.3)
    assert set(profile.seconds) == {step_profile.TRAINING}

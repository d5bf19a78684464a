from __future__ import annotations

from memnode.liveness import Liveness


def test_nobody_expires_before_the_time():
    seen = Liveness[str](10.0)
    seen.touch("a", now_s=0.0)
    assert seen.expire(now_s=9.9) == []
    assert seen.expire(now_s=10.0) == ["a"]
    assert len(seen) == 0


def test_the_longest_silent_goes_first():
    seen = Liveness[str](10.0)
    seen.touch("a", now_s=0.0)
    seen.touch("b", now_s=1.0)
    seen.touch("a", now_s=2.0)
    assert seen.expire(now_s=100.0) == ["b", "a"]


def test_a_sign_of_life_begins_the_silence_anew():
    seen = Liveness[str](10.0)
    seen.touch("a", now_s=0.0)
    seen.touch("a", now_s=8.0)
    assert seen.expire(now_s=17.0) == []
    assert "a" in seen
    assert seen.expire(now_s=18.0) == ["a"]


def test_the_forgotten_never_expire():
    seen = Liveness[str](10.0)
    seen.touch("a", now_s=0.0)
    seen.forget("a")
    seen.forget("never there")
    assert seen.expire(now_s=100.0) == []

from __future__ import annotations

from smbox.client.patience import IDLE_S, SILENCE_MAX_S, Patience
from smbox.config import ClientConfig

CONFIG = ClientConfig("tcp://h:1", resend_after_s=1.0, resend_after_max_s=3.0)


def silent(patience, *, is_greeted):
    """Wait until patience is over; tell how long that took."""
    waited_s = patience.left_s(is_greeted=is_greeted)
    assert not patience.is_over(waited_s / 2, is_greeted=is_greeted)
    assert patience.is_over(waited_s / 2, is_greeted=is_greeted)
    return waited_s


def test_a_node_that_is_away_is_greeted_at_growing_pauses():
    patience = Patience(CONFIG)
    assert [silent(patience, is_greeted=False) for _ in range(4)] == [1, 2, 3, 3]
    patience.heard(0.1, 5.0, is_greeted=False)
    assert patience.left_s(is_greeted=False) == 1


def test_patience_with_a_node_that_answers_grows_with_its_answers():
    patience = Patience(CONFIG)
    patience.expect(0.0)
    assert not patience.is_over(0.9, is_greeted=True)
    patience.heard(3.0, 4.0, is_greeted=True)
    assert patience.left_s(is_greeted=True) == 7.8
    patience.heard(0.001, 4.0, is_greeted=True)
    assert patience.left_s(is_greeted=True) == 1
    silences = [silent(patience, is_greeted=True) for _ in range(7)]
    assert silences == [1, 2, 4, 8, 16, SILENCE_MAX_S, SILENCE_MAX_S]


def test_a_connection_that_was_silent_for_long_is_stale():
    patience = Patience(CONFIG)
    patience.expect(100.0)
    assert not patience.is_stale(100.0 + IDLE_S)
    assert patience.is_stale(101.0 + IDLE_S)

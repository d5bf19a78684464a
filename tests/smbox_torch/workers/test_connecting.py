from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

import smbox
from smbox.errors import ConfigError
from smbox_torch import connect


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> Iterator[smbox.Box]:
    """A memory node that the environment names, and torch's generator as it was."""
    state = torch.get_rng_state()
    with smbox.local(memory="16MiB") as box:
        monkeypatch.setenv("SMBOX_ADDRESS", box.address)
        yield box
    torch.set_rng_state(state)


def draw(monkeypatch: pytest.MonkeyPatch, rank: int) -> list[float]:
    """What a worker draws after it has seeded as all do, and connected."""
    monkeypatch.setenv("SMBOX_RANK", str(rank))
    for name in ("SMBOX_WORLD_SIZE", "SMBOX_LOCAL_WORLD_SIZE"):
        monkeypatch.setenv(name, "2")
    monkeypatch.setenv("SMBOX_LOCAL_RANK", str(rank))
    monkeypatch.setenv("SMBOX_GROUP_RANK", "0")
    torch.manual_seed(7)
    first = torch.rand(1).item()
    with connect() as box:
        assert box.counter("c").value == 0
    return [first, *torch.rand(3).tolist()]


def test_workers_of_one_seed_draw_different_numbers(
    node: smbox.Box, monkeypatch: pytest.MonkeyPatch
):
    torch.manual_seed(7)
    plain = torch.rand(4).tolist()
    zero, one = (draw(monkeypatch, rank) for rank in range(2))
    assert zero == plain  # rank 0 goes on as if it were alone
    assert one[0] == plain[0]
    assert one[1:] != plain[1:]
    assert one == draw(monkeypatch, 1)


def test_without_an_address_nothing_is_seeded(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("SMBOX_ADDRESS", raising=False)
    monkeypatch.setenv("SMBOX_RANK", "0")
    before = torch.get_rng_state()
    with pytest.raises(ConfigError, match="SMBOX_ADDRESS"):
        connect()
    assert torch.equal(torch.get_rng_state(), before)

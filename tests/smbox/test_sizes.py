from __future__ import annotations

import pytest

from smbox.address import OFFSET_BITS
from smbox.config import check_memory, parse_size
from smbox.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [
        ("4096", 4096),
        ("64k", 64_000),
        ("500MB", 500_000_000),
        ("8GiB", 8 << 30),
        (" 1.5 GiB ", 3 << 29),
        ("1TiB", 1 << 40),
        ("7b", 7),
    ],
)
def test_sizes(text, nbytes):
    assert parse_size(text) == nbytes


@pytest.mark.parametrize("text", ["", "GiB", "-1", "8 gigs", "8iB", "1e9", "8GiBs", "9" * 400])
def test_what_is_no_size(text):
    with pytest.raises(ConfigError, match="size"):
        parse_size(text)


@pytest.mark.parametrize("nbytes", [1 << 20, 1 << OFFSET_BITS])
def test_memory_that_a_node_can_have(nbytes):
    assert check_memory(nbytes) == nbytes


@pytest.mark.parametrize("nbytes", [0, (1 << 20) - 1, (1 << OFFSET_BITS) + 1])
def test_memory_that_no_node_can_have(nbytes):
    with pytest.raises(ConfigError, match="at least 1 MiB") as caught:
        check_memory(nbytes)
    assert caught.value.facts["memory_nbytes"] == nbytes

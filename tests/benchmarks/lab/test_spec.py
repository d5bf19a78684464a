from __future__ import annotations

import pytest
from lab import spec

from smbox.errors import ConfigError


def test_hosts_are_numbered_and_take_the_rate_of_the_file():
    told = spec.read(
        b'rate_mbit = 1000\n[[host]]\nname = "node"\nmemory = "1GiB"\nrate_mbit = 0\n'
        b'[[host]]\nname = "worker"\ncount = 2\nworkers = 3\ncores = [2, 3]\n'
    )
    assert [host.name for host in told.hosts] == ["node", "worker0", "worker1"]
    assert [host.rate_mbit for host in told.hosts] == [0, 1000, 1000]
    assert [host.cores for host in told.hosts] == [(), (2, 3), (2, 3)]
    assert len({host.ip for host in told.hosts}) == 3
    assert [host.workers for host in told.hosts] == [0, 3, 3]
    assert told.keys


def test_hosts_are_on_islands_with_a_link_of_their_own():
    told = spec.read(
        b'[[island]]\nname = "west"\nrate_mbit = 100\n'
        b'[[host]]\nname = "w"\ncount = 2\nisland = "west"\n[[host]]\nname = "lone"\n'
    )
    assert [(each.name, each.rate_mbit) for each in told.islands] == [("west", 100.0)]
    assert [host.island for host in told.hosts] == ["west", "west", ""]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"", "host"),
        (b"host = []", "1 to 200 hosts"),
        (b"[[host]", "no laboratory"),
        (b'[[host]]\nname = "a"\ncolour = "red"', "colour"),
        (b'[[host]]\nname = "A b"', "names of hosts"),
        (b'[[host]]\nname = "a"\n[[host]]\nname = "a"', "names of hosts"),
        (b'[[host]]\nname = "a"\nrate_mbit = -1', "not negative"),
        (b'[[host]]\nname = "a"\nrate_mbit = inf', "finite"),
        (b'delay_ms = nan\n[[host]]\nname = "a"', "finite"),
        (b'[[host]]\nname = "a"\ncount = 201', "1 to 200 hosts"),
        (b'[[host]]\nname = "a"\nisland = "x"', "island of the file"),
        (b'[[island]]\nname = "x"\nrate_mbit = -1\n[[host]]\nname = "a"', "names of islands"),
        (b'[[island]]\nname = "x"\nrate_mbit = nan\n[[host]]\nname = "a"', "finite"),
        (b'[[island]]\nname = ""\n[[host]]\nname = "a"', "names of islands"),
    ],
)
def test_what_cannot_be_is_refused(text: bytes, words: str):
    with pytest.raises(ConfigError, match=words):
        spec.read(text)

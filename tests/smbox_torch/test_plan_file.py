from __future__ import annotations

import pytest

from smbox.errors import ConfigError
from smbox_torch.plan_file import read
from smbox_torch.plan_ways import WAYS

LEAST = """
[model]
parameters = 1000
batch = 8
compute_s = 0.5
[network]
link_mbit = 1000
"""


def test_what_is_not_told_has_a_default():
    file = read(LEAST.encode(), is_measured=False)
    assert file.plan.ways == tuple(WAYS)
    assert (min(file.plan.workers), max(file.plan.workers)) == (2, 1000)
    assert (file.plan.period, file.node.nodes, file.network.latency_ms) == (10, 2, 0.0)


def test_setups_and_rates_have_what_the_file_tells():
    text = LEAST + (
        "latency_ms = 2\n[node]\nrate_gbytes = 0.5\nnodes = 3\n"
        '[plan]\nworkers = [3, 5]\nways = ["easgd"]\nperiod = 4\nper_host = 8\n'
    )
    file = read(text.encode(), is_measured=False)
    three, five = file.setups(1000, 0.5)
    assert (three.workers, five.workers) == (3, 5)
    assert (three.nbytes, three.compute_s) == (4000.0, 0.5)
    assert (three.period, three.nodes, three.per_host) == (4, 3, 8)
    assert (file.rates().latency_s, file.rates().node_gbytes) == (0.002, 0.5)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("[model]", "[model", "this is no plan"),
        ("batch = 8", "", "batch"),
        ("batch = 8", 'batch = "8"', "batch"),
        ("batch = 8", "batch = 0", "batch must be at least 1"),
        ("batch = 8", "batch = 8\nbatches = 8", "batches"),
        ("parameters = 1000", "", "either a name"),
        ("parameters = 1000", 'parameters = 1000\nname = "vgg16"', "either a name"),
        ("parameters = 1000", "parameters = 0", "parameters must be at least 1"),
        ("compute_s = 0.5", "", "--measure"),
        ("compute_s = 0.5", "compute_s = 0.0", "compute_s must be above 0"),
        ("compute_s = 0.5", "compute_s = nan", "compute_s must be above 0"),
        ("link_mbit = 1000", "link_mbit = 0", "link_mbit must be above 0"),
        ("link_mbit = 1000", "link_mbit = inf", "link_mbit must be above 0"),
        ("link_mbit = 1000", "link_mbit = 1\nlatency_ms = -1", "latency_ms"),
        ("[network]", "[node]\nrate_gbytes = -1\n[network]", "rate_gbytes must be above 0"),
        ("[network]", "[node]\nnodes = 0\n[network]", "nodes must be at least 1"),
        ("[network]", "[plan]\nworkers = []\n[network]", "workers must be at least 1"),
        ("[network]", "[plan]\nworkers = [0]\n[network]", "workers must be at least 1"),
        ("[network]", "[plan]\nworkers = [2000000]\n[network]", "workers are at most"),
        ("[network]", "[plan]\nperiod = 0\n[network]", "period must be at least 1"),
        ("[network]", '[plan]\nways = ["rings"]\n[network]', "ways are some of"),
        ("[network]", "[plan]\nways = []\n[network]", "ways are some of"),
    ],
)
def test_what_cannot_be_is_refused(old: str, new: str, message: str):
    assert old in LEAST
    with pytest.raises(ConfigError, match=message):
        read(LEAST.replace(old, new).encode(), is_measured=False)


def test_a_measured_time_is_not_given_and_needs_a_model():
    with pytest.raises(ConfigError, match="needs the name"):
        read(LEAST.encode(), is_measured=True)
    named = LEAST.replace("parameters = 1000", 'name = "alexnet"')
    with pytest.raises(ConfigError, match="compute_s is given"):
        read(named.encode(), is_measured=True)
    free = named.replace("compute_s = 0.5", "")
    assert read(free.encode(), is_measured=True).model.compute_s is None
    with pytest.raises(ConfigError, match="this is no plan"):
        read(b"\xff", is_measured=False)

from __future__ import annotations

import math
from dataclasses import asdict

import pytest

from smbox.errors import ConfigError
from smbox_torch.planning.file import read
from smbox_torch.planning.methods import METHODS
from smbox_torch.planning.rates import predict

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
    assert file.plan.methods == tuple(METHODS)
    assert (min(file.plan.workers), max(file.plan.workers)) == (2, 1000)
    assert (file.node.rate_gbytes, file.plan.per_host) == (1.0, 2)
    assert (file.plan.period, file.node.nodes, file.network.latency_ms) == (10, 2, 0.0)


def test_setups_and_rates_have_what_the_file_tells():
    text = LEAST + (
        "latency_ms = 2\n[node]\nrate_gbytes = 0.5\nnodes = 3\n"
        '[plan]\nworkers = [3, 5]\nmethods = ["easgd"]\nperiod = 4\nper_host = 8\n'
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
        ("[model]", "[model", "this is not a plan"),
        ("batch = 8", "", "batch"),
        ("batch = 8", 'batch = "8"', "batch"),
        ("batch = 8", "batch = 0", "batch must be at least 1 "),
        ("batch = 8", "batch = 8\nbatches = 8", "batches"),
        ("batch = 8", "batch = 1" + 400 * "0", "batch must be .* at most 1e.06"),
        ("batch = 8", "batch = 1" + 5000 * "0", "5001 digits"),
        ("parameters = 1000", "", "either name"),
        ("parameters = 1000", 'parameters = 1000\nname = "vgg16"', "either name"),
        ("parameters = 1000", "parameters = 0", "parameters must be at least 1 "),
        ("parameters = 1000", "parameters = 1" + 400 * "0", "parameters must be .* at most"),
        ("compute_s = 0.5", "", "--measure"),
        ("compute_s = 0.5", "compute_s = 0.0", "compute_s must be at least 1e-06"),
        ("compute_s = 0.5", "compute_s = nan", "compute_s must be"),
        ("compute_s = 0.5", "compute_s = 1e300", "compute_s must be .* at most"),
        ("compute_s = 0.5", "compute_s = 1e400", "compute_s must be .* at most"),
        ("link_mbit = 1000", "link_mbit = 0", "link_mbit must be at least"),
        ("link_mbit = 1000", "link_mbit = 1e-310", "link_mbit must be at least"),
        ("link_mbit = 1000", "link_mbit = inf", "link_mbit must be .* at most"),
        ("link_mbit = 1000", "link_mbit = 1\nlatency_ms = -1", "latency_ms"),
        ("link_mbit = 1000", "link_mbit = 1\nlatency_ms = nan", "latency_ms"),
        ("link_mbit = 1000", "link_mbit = 1\nlatency_ms = 1e308", "latency_ms"),
        ("[network]", "[node]\nrate_gbytes = -1\n[network]", "rate_gbytes must be at least"),
        ("[network]", "[node]\nnodes = 0\n[network]", "nodes must be at least 1 "),
        ("[network]", f"[node]\nnodes = {10**400}\n[network]", "nodes must be .* at most"),
        ("[network]", "[plan]\nworkers = []\n[network]", "workers must be at least 1 "),
        ("[network]", "[plan]\nworkers = [0]\n[network]", "workers must be at least 1 "),
        ("[network]", "[plan]\nworkers = [2000000]\n[network]", "workers must be .* at most"),
        ("[network]", "[plan]\nperiod = 0\n[network]", "period must be at least 1 "),
        ("[network]", f"[plan]\nperiod = {10**400}\n[network]", "period must be .* at most"),
        ("[network]", f"[plan]\nper_host = {10**400}\n[network]", "per_host must be .* at"),
        ("[network]", '[plan]\nmethods = ["rings"]\n[network]', "methods must be some of"),
        ("[network]", "[plan]\nmethods = []\n[network]", "methods must be some of"),
        ("[network]", f"x = {3000 * '['}\n[network]", "nested too deeply"),
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
    with pytest.raises(ConfigError, match="this is not a plan"):
        read(b"\xff", is_measured=False)


def test_predictions_at_the_limits_are_finite():
    text = """
[model]
parameters = {parameters}
batch = {count}
compute_s = {rate}
[network]
link_mbit = {rate}
latency_ms = {latency}
[node]
rate_gbytes = {rate}
nodes = {count}
[plan]
workers = [1, 1000000]
period = {count}
per_host = {count}
"""
    least = {"parameters": 1, "count": 1, "rate": 1e-6, "latency": 0}
    most = {"parameters": 10**15, "count": 10**6, "rate": 1e9, "latency": 1e6}
    for told in (least, most, most | {"rate": 1e-6}, least | {"rate": 1e9}):
        file = read(text.format(**told).encode(), is_measured=False)
        setups = file.setups(told["parameters"], told["rate"])
        for method in METHODS:
            for setup in setups:
                found = asdict(predict(method, setup, file.rates(), batch=told["count"]))
                numbers = [each for each in found.values() if isinstance(each, float)]
                assert len(numbers) >= 8
                assert all(math.isfinite(each) for each in numbers), found

"""Links and sizes that make no sense are refused by name, whatever number was given."""

from __future__ import annotations

import math

import numpy as np
import pytest

from smbox.errors import ConfigError
from smbox_torch.topology import Link, Links, choose

LINK = Link(1e-4, 1e8, 1e8)
TWO = Links(((LINK, LINK), (LINK, LINK)), (0, 1), (0, 1))
HUGE = pytest.param(10**5000, id="huge")  # neither a float nor, by default, a text


@pytest.mark.parametrize("name", ["put_rate", "get_rate"])
@pytest.mark.parametrize("rate", [0, 0.0, -1.0, math.inf, math.nan, HUGE, 5e-324, 1e308])
def test_a_rate_that_is_no_rate_is_refused(name: str, rate: float):
    link = Link(**{"latency_s": 0.0, "put_rate": 1.0, "get_rate": 1.0} | {name: rate})
    with pytest.raises(ConfigError, match=f"{name} of a link") as caught:
        Links(((LINK, link),), (3, 7), (0,))
    assert (caught.value.facts["rank"], caught.value.facts["node"]) == (0, 7)
    assert str(caught.value)


@pytest.mark.parametrize("latency_s", [-1.0, math.inf, math.nan, HUGE])
def test_a_latency_that_is_none_is_refused(latency_s: float):
    with pytest.raises(ConfigError, match="latency_s of a link"):
        Links(((Link(latency_s, 1.0, 1.0),),), (0,), (0,))


@pytest.mark.parametrize("value", ["1", None, True, [1.0]])
def test_what_is_no_number_is_a_type_error(value):
    with pytest.raises(TypeError, match="get_rate of a link"):
        Links(((Link(0.0, 1.0, value),),), (0,), (0,))
    with pytest.raises(TypeError, match="Link"):
        Links(((value,),), (0,), (0,))


@pytest.mark.parametrize(
    ("rows", "nodes", "hosts"),
    [
        ((), (0,), ()),
        (((), ()), (), (0, 1)),  # no nodes
        (((LINK,),), (0, 1), (0,)),
        (((LINK,),), (0,), (0, 1)),
        (((LINK, LINK), (LINK,)), (0, 1), (0, 1)),
    ],
)
def test_rows_that_are_no_table_are_refused(rows, nodes, hosts):
    with pytest.raises(ConfigError, match="one row for each worker"):
        Links(rows, nodes, hosts)


@pytest.mark.parametrize(
    ("settings", "error", "word"),
    [
        ({"nodes": (1, 1)}, ConfigError, "nodes"),
        ({"nodes": (3, 1)}, ConfigError, "nodes"),
        ({"nodes": ("a", "b")}, TypeError, "nodes"),
        ({"hosts": (-1, 0)}, ConfigError, "hosts"),
        ({"hosts": (0.0, math.nan)}, TypeError, "hosts"),
        ({"hosts": (0, 5), "names": ("a", "b")}, ConfigError, "names"),
        ({"rows": 5}, TypeError, "rows"),
        ({"hosts": None}, TypeError, "hosts"),
    ],
)
def test_ids_that_do_not_fit_are_refused(settings, error, word):
    with pytest.raises(error, match=word):
        Links(**{"rows": TWO.rows, "nodes": TWO.nodes, "hosts": TWO.hosts} | settings)


@pytest.mark.parametrize(
    "shape", [(0, 2, 5), (2, 0, 5), (2, 2, 4), (2, 2, 6), (2, 2), (2, 1, 5)]
)
def test_an_array_of_another_shape_is_refused(shape: tuple[int, ...]):
    with pytest.raises(ConfigError, match="array needs one row for each worker"):
        Links.from_array(np.ones(shape), (0, 1))


@pytest.mark.parametrize(("column", "word"), [(1, "put_rate"), (4, "host")])
def test_an_array_with_nan_is_refused(column: int, word: str):
    array = TWO.as_array()
    array[0, 0, column] = math.nan
    with pytest.raises(ConfigError, match=word):
        Links.from_array(array, TWO.nodes)


@pytest.mark.parametrize("name", ["nbytes", "period"])
@pytest.mark.parametrize(
    ("value", "error"),
    [
        (0, ConfigError),
        (-1, ConfigError),
        (10**400, ConfigError),
        pytest.param(10**5000, ConfigError, id="huge"),
        (1.5, TypeError),
        (math.nan, TypeError),
        (math.inf, TypeError),
        (True, TypeError),
        ("4", TypeError),
        (None, TypeError),
    ],
)
def test_a_model_or_period_that_makes_no_sense_is_refused(name, value, error):
    with pytest.raises(error, match=name) as caught:
        choose(TWO, **{"nbytes": 4, "period": 1} | {name: value})
    assert str(caught.value)


def test_numbers_of_numpy_are_as_good_as_others():
    wanted = choose(TWO, nbytes=4, period=2)
    link = Link(np.float32(1e-4), np.int64(10**8), np.float64(1e8))
    found = choose(Links(((link,),), (0,), (0,)), nbytes=np.int64(4), period=np.uint8(2))
    assert wanted.period == found.period
    assert type(found.nbytes) is int


def test_the_extremes_have_finite_predictions():
    fast, slow = Link(0.0, 1e18, 1e18), Link(1e9, 1e-6, 1e-6)
    links = Links(((fast, slow), (fast, slow), (slow, slow)), (0, 1), (0, 1, 2))
    for nbytes in (1, (1 << 63) - 1):
        for period in (1, (1 << 63) - 1):
            topology = choose(links, nbytes=nbytes, period=period)
            assert all(math.isfinite(cut.step_s) for cut in topology.cuts)
            assert "inf" not in str(topology)
            assert "nan" not in str(topology)


@pytest.mark.parametrize("links", [None, TWO.rows, 5])
def test_what_are_no_links_are_refused(links):
    with pytest.raises(TypeError, match="links"):
        choose(links, nbytes=4)


def test_one_worker_is_a_group():
    for nodes in (1, 2):
        topology = choose(Links(((LINK,) * nodes,), tuple(range(nodes)), (0,)), nbytes=4)
        assert [group.ranks for group in topology.groups] == [(0,)]

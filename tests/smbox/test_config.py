from __future__ import annotations

import math

import pytest

from smbox.config import ClientConfig, addresses_of, scheme_of
from smbox.errors import ConfigError


def test_an_empty_environment_gives_the_defaults():
    assert ClientConfig.from_env({}) == ClientConfig()
    empty = {"SMBOX_ADDRESS": "", "SMBOX_TRANSPORT": "", "SMBOX_KEY": ""}
    assert ClientConfig.from_env(empty) == ClientConfig()


def test_every_setting_has_its_variable():
    config = ClientConfig.from_env(
        {
            "SMBOX_ADDRESS": "tcp://10.0.0.5:7070",
            "SMBOX_TRANSPORT": "tcp",
            "SMBOX_TIMEOUT_S": "2.5",
            "SMBOX_RESEND_AFTER_S": "0.25",
            "SMBOX_RESEND_AFTER_MAX_S": "0.5",
            "SMBOX_LEND_FROM_NBYTES": "4096",
        }
    )
    assert config == ClientConfig("tcp://10.0.0.5:7070", "tcp", 2.5, 0.25, 0.5, 4096)


def test_a_long_first_pause_lengthens_the_longest():
    assert ClientConfig.from_env({"SMBOX_RESEND_AFTER_S": "9"}).resend_after_max_s == 9.0
    short = ClientConfig.from_env({"SMBOX_RESEND_AFTER_S": "0.25"})
    assert short.resend_after_max_s == ClientConfig().resend_after_max_s


def test_an_endless_timeout_is_a_timeout():
    assert ClientConfig.from_env({"SMBOX_TIMEOUT_S": "inf"}).timeout_s == math.inf


@pytest.mark.parametrize(
    "settings",
    [
        {"address": "10.0.0.5:7070"},
        {"address": "tcp://10.0.0.5:65536"},
        {"transport": "rdma"},
        {"timeout_s": 0},
        {"timeout_s": math.nan},
        {"resend_after_s": -1.0},
        {"lend_from_nbytes": 0},
        {"lend_from_nbytes": math.nan},
        {"resend_after_s": 2.0, "resend_after_max_s": 1.0},
    ],
)
def test_what_can_never_work_is_refused(settings):
    with pytest.raises(ConfigError):
        ClientConfig(**settings)


@pytest.mark.parametrize("value", ["soon", ""])
def test_a_variable_that_is_no_number_is_named(value):
    with pytest.raises(ConfigError, match="SMBOX_TIMEOUT_S"):
        ClientConfig.from_env({"SMBOX_TIMEOUT_S": value})


@pytest.mark.parametrize(
    ("address", "scheme"),
    [
        ("tcp://h:1", "tcp"),
        ("tcp://[::1]:7070", "tcp"),
        ("tcp://[::]:7070", "tcp"),
        ("tcp://[fe80::1%eth0]:7070", "tcp"),
        ("tcp://10.0.0.1:0;10.0.0.2:7070", "tcp"),
        ("ipc:///tmp/a", "ipc"),
        ("inproc://a", "inproc"),
    ],
)
def test_the_scheme_chooses_the_transport(address, scheme):
    assert scheme_of(address) == scheme


@pytest.mark.parametrize(
    "address",
    [
        "",
        "tcp://",
        "tcp://host",
        "tcp://:7070",
        "tcp://h:x",
        "tcp://h:70000",
        "tcp://h:0",
        "udp://h:1",
        "tcp://::1:7070",
        "tcp://[::1:7070",
        "tcp://::1]:7070",
        "tcp://h:\u00b2",
        "tcp://h:\uff15",
        "tcp://h:" + "1" * 5000,
        "tcp://[]:1",
        "tcp://\udcc3\udcb6:1",
        "ipc:///tmp/\udcff",
    ],
)
def test_an_address_that_is_none_is_refused(address):
    with pytest.raises(ConfigError):
        scheme_of(address)


def test_addresses_are_split_where_the_next_one_begins():
    told = "tcp://a:1, ipc:///run/a,b ,tcp://[::1]:3"
    assert addresses_of(told) == ("tcp://a:1", "ipc:///run/a,b", "tcp://[::1]:3")
    assert addresses_of(" tcp://a:1\n") == ("tcp://a:1",)
    assert ClientConfig(address=told).address == told
    for wrong in ("tcp://a:1,tcp://b", "tcp://a:1,b:2", "tcp://a:1,"):
        with pytest.raises(ConfigError):
            ClientConfig(address=wrong)

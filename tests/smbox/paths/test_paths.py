"""Paths of a kind have the same methods, with the same parameters."""

from __future__ import annotations

import inspect
import pickle

import pytest

from smbox.address import GlobalAddress
from smbox.client.remote import RemotePath
from smbox.client.transfer import Transfer
from smbox.dtypes import by_name
from smbox.paths.control import ControlPath
from smbox.paths.local import LocalPath, LocalWait
from smbox.paths.local_queue import LocalWork
from smbox.paths.requests import RegionInfo
from smbox.testing.solo import SoloControl
from smbox.work import Work

PAIRS = [
    (LocalPath, RemotePath),
    (RemotePath, LocalPath),
    (SoloControl, ControlPath),
    (Work, LocalWork),
    (Work, Transfer),
    (Work, LocalWait),
]


def methods(protocol):
    return {
        name: member
        for name, member in vars(protocol).items()
        if inspect.isfunction(member) and not name.startswith("_")
    }


@pytest.mark.parametrize(("protocol", "built"), PAIRS)
def test_methods_match(protocol, built):
    wanted = methods(protocol)
    assert wanted
    for name, member in wanted.items():
        found = inspect.signature(getattr(built, name)).parameters
        kinds = [parameter.kind for parameter in inspect.signature(member).parameters.values()]
        assert [parameter.kind for parameter in found.values()] == kinds, name


def test_an_info_travels():
    info = RegionInfo(
        "some",
        by_name("float32"),
        (2,),
        address=GlobalAddress(4096),
        node_uuid=bytes(16),
    )
    assert pickle.loads(pickle.dumps(info)) == info

"""Tests of the public names: present, documented, and every error exported."""

from __future__ import annotations

import inspect
import pkgutil

import pytest

import memnode
import smbox
import smbox_torch
from smbox import errors

PROMISED = {
    "Box",
    "Counter",
    "GlobalAddress",
    "Handle",
    "Region",
    "connect",
    "local",
    "register_adapter",
}


def test_the_promised_names_are_exported():
    assert set(smbox.__all__) >= PROMISED


@pytest.mark.parametrize("package", [smbox, smbox_torch])
def test_all_is_sorted_and_true(package):
    assert len(package.__all__) == len(set(package.__all__))
    assert [name for name in package.__all__ if not hasattr(package, name)] == []


def test_nothing_public_is_left_out_of_all():
    modules = {found.name for found in pkgutil.iter_modules(smbox.__path__)}
    public = {
        name
        for name, value in vars(smbox).items()
        if not name.startswith("_") and not inspect.ismodule(value) and name != "annotations"
    }
    assert public - modules - set(smbox.__all__) == set()


@pytest.mark.parametrize("name", sorted(PROMISED))
def test_public_names_are_documented(name: str):
    value = getattr(smbox, name)
    assert inspect.getdoc(value)
    if inspect.isclass(value):
        members = [m for k, m in vars(value).items() if not k.startswith("_")]
        silent = [m for m in members if inspect.isfunction(m) and not inspect.getdoc(m)]
        assert silent == []


def test_every_error_is_exported_and_is_an_smbox_error():
    found = {
        name
        for name, value in vars(errors).items()
        if inspect.isclass(value) and issubclass(value, Exception)
    }
    assert found <= set(smbox.__all__)
    assert all(issubclass(getattr(errors, name), errors.SmboxError) for name in found)


def test_packages_have_a_first_line():
    assert all(package.__doc__ for package in (smbox, memnode, smbox_torch))

"""Plug-in commands of other packages."""

from __future__ import annotations

import typer
from typer.testing import CliRunner

from smbox.cli import plugins


class Point:
    """An entry point that loads the object or raises the error that the test passes."""

    def __init__(self, name: str, loaded: object) -> None:
        self.name = name
        self._loaded = loaded

    def load(self) -> object:
        if isinstance(self._loaded, Exception):
            raise self._loaded
        return self._loaded


def hello(name: str) -> None:
    """Say hello."""
    print(f"hello {name}")


def app_with(point: Point) -> typer.Typer:
    app = typer.Typer()
    app.command("own")(lambda: None)
    plugins.add(app, point)
    return app


POINTS = {"run": Point("run", hello), "demo": Point("demo", hello)}


def test_only_the_plugin_that_is_called_is_loaded():
    assert [p.name for p in plugins.wanted(["run", "--help"], POINTS)] == ["run"]
    assert plugins.wanted(["ls"], POINTS) == []


def test_help_shows_all_plugins():
    assert [p.name for p in plugins.wanted(["--help"], POINTS)] == ["run", "demo"]
    assert [p.name for p in plugins.wanted([], POINTS)] == ["run", "demo"]


def test_a_function_becomes_a_command():
    result = CliRunner().invoke(app_with(Point("run", hello)), ["run", "you"])
    assert (result.exit_code, result.output) == (0, "hello you\n")


def test_a_function_keeps_its_settings():
    def passes_on(words: list[str]) -> None:
        print(words)

    passes_on.context_settings = {"allow_interspersed_args": False}
    result = CliRunner().invoke(
        app_with(Point("run", passes_on)), ["run", "train.py", "--lr", "1"]
    )
    assert (result.exit_code, result.output) == (0, "['train.py', '--lr', '1']\n")


def test_an_application_becomes_a_group():
    inner = typer.Typer()
    inner.command("one")(hello)
    inner.command("two")(hello)
    result = CliRunner().invoke(app_with(Point("demo", inner)), ["demo", "two", "all"])
    assert (result.exit_code, result.output) == (0, "hello all\n")


def test_a_plugin_that_cannot_be_imported_says_what_it_needs():
    point = Point("demo", ModuleNotFoundError("it needs PyTorch: pip install 'smbox[demo]'"))
    result = CliRunner().invoke(app_with(point), ["demo", "--workers", "2"])
    assert result.exit_code == 1
    assert "it needs PyTorch: pip install 'smbox[demo]'" in result.output


def test_the_installed_plugins_are_entry_points():
    assert all(point.group == plugins.GROUP for point in plugins.available().values())

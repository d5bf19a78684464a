from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest

from smbox import toml
from smbox.errors import ConfigError


class Table(msgspec.Struct, forbid_unknown_fields=True):
    count: int


def counted(text: bytes) -> Table:
    return toml.decode(text, Table, "this is no table")


def test_a_file_is_read_into_its_form(tmp_path: Path):
    path = tmp_path / "table.toml"
    path.write_text("count = 7")
    assert toml.read(path, counted).count == 7


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (b"\xff", "UTF-8"),
        (b"count", "Expected '='"),
        (b"count = 'x'", r"\$\.count"),
        (b"colour = 1", "colour"),
        (b"count = 1" + 5000 * b"0", "5001 digits"),
        (b"count = " + 5000 * b"[", "nested too deeply"),
        (b"count = " + 3000 * b"{a=", "nested too deeply"),
        (b"a." * 3000 + b"b = 1", "this is no table"),
        (b"count = 2026-13-45", "this is no table"),
    ],
)
def test_a_text_without_meaning_is_refused_by_the_file_and_its_error(
    tmp_path: Path, text: bytes, says: str
):
    path = tmp_path / "table.toml"
    path.write_bytes(text)
    with pytest.raises(ConfigError, match=says) as caught:
        toml.read(path, counted)
    assert caught.value.facts["file"] == str(path)
    assert len(str(caught.value)) < 500


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path):
    with pytest.raises(ConfigError, match="No such file"):
        toml.read(tmp_path / "none.toml", counted)
    with pytest.raises(ConfigError, match="directory"):
        toml.read(tmp_path, counted)
    with pytest.raises(ConfigError, match="at most"):
        toml.read(Path("/dev/zero"), counted)


def test_a_pipe_is_read_to_its_end():
    reading, writing = os.pipe()
    os.write(writing, b"count = 7")
    os.close(writing)
    try:
        assert toml.read(Path(f"/dev/fd/{reading}"), counted).count == 7
    finally:
        os.close(reading)


def test_facts_go_with_the_error():
    with pytest.raises(ConfigError) as caught:
        toml.decode(b"", Table, "this is no table", key="k")
    assert caught.value.facts == {"key": "k"}


def test_a_file_of_the_largest_size_is_read_and_the_facts_of_its_error_stay(tmp_path: Path):
    path = tmp_path / "table.toml"
    path.write_bytes(b"#" * toml.FILE_NBYTES_MAX)

    def refused(text: bytes) -> Table:
        raise ConfigError("too long", length=len(text))

    with pytest.raises(ConfigError, match="too long") as caught:
        toml.read(path, refused)
    assert caught.value.facts == {"file": str(path), "length": toml.FILE_NBYTES_MAX}

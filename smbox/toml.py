"""Typed values from TOML files that users write; each failure is a ConfigError."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from smbox.errors import ConfigError

FILE_NBYTES_MAX: Final = 1 << 20

Value = TypeVar("Value")


def read(path: Path, parse: Callable[[bytes], Value]) -> Value:
    """Read a file, or a pipe to its end, and return its parsed value.

    Args:
        path: path of the file.
        parse: returns the value of a text; raises ConfigError if the text is invalid.

    Raises:
        ConfigError: the file cannot be read, is larger than FILE_NBYTES_MAX, or is invalid; the
            error names the file.
    """
    try:
        with path.open("rb") as file:
            text = file.read(FILE_NBYTES_MAX + 1)
    except OSError as error:
        raise ConfigError(f"cannot read the file: {error.strerror}", file=str(path)) from error
    if len(text) > FILE_NBYTES_MAX:
        message = f"a file of settings has at most {FILE_NBYTES_MAX} bytes"
        raise ConfigError(message, file=str(path))
    try:
        return parse(text)
    except ConfigError as error:
        raise ConfigError(error.message, file=str(path), **error.facts) from error


def decode(text: bytes, form: type[Value], wrong: str, **facts: object) -> Value:
    """Decode a TOML text.

    Args:
        text: the text, in UTF-8.
        form: type of the value, for msgspec.
        wrong: first words of the error message.
        facts: facts of the error.

    Raises:
        ConfigError: the text is not TOML, or its value has another type; the error then names
            the key.
    """
    try:
        return msgspec.toml.decode(text.decode(), type=form)
    except UnicodeDecodeError as error:
        why = f"it is not in UTF-8 ({error.reason} at byte {error.start})"
        raise ConfigError(f"{wrong}: {why}", **facts) from error
    except RecursionError as error:
        raise ConfigError(f"{wrong}: its values are nested too deeply", **facts) from error
    except (msgspec.MsgspecError, ValueError) as error:  # ValueError: a number of 5000 digits
        why = str(error).partition(";")[0]
        raise ConfigError(f"{wrong}: {why}", **facts) from error

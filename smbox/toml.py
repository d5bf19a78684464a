"""TOML files that users write, read into typed values; each failure is a ConfigError."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from smbox.errors import ConfigError

FILE_NBYTES_MAX: Final = 1 << 20

Value = TypeVar("Value")


def read(path: Path, meaning: Callable[[bytes], Value]) -> Value:
    """Read a file, or a pipe to its end, and make of its text what ``meaning`` makes of it.

    Args:
        path: of the file.
        meaning: of the text; raises ConfigError where it has none.

    Raises:
        ConfigError: the file cannot be read, is larger than FILE_NBYTES_MAX or has no meaning;
            names the file.
    """
    try:
        with path.open("rb") as file:
            text = file.read(FILE_NBYTES_MAX + 1)
    except OSError as error:
        raise ConfigError(
            f"the file cannot be read: {error.strerror}", file=str(path)
        ) from error
    if len(text) > FILE_NBYTES_MAX:
        raise ConfigError(
            f"a file of settings has at most {FILE_NBYTES_MAX} bytes", file=str(path)
        )
    try:
        return meaning(text)
    except ConfigError as error:
        raise ConfigError(error.message, file=str(path), **error.facts) from error


def decode(text: bytes, form: type[Value], wrong: str, **facts: object) -> Value:
    """Return the value that a text of TOML describes.

    Args:
        text: in UTF-8.
        form: of the value, as msgspec has it.
        wrong: how the error begins if there is no such value.
        facts: of the error.

    Raises:
        ConfigError: the text is no TOML, or its value has another form; names the key if the
            text could be read.
    """
    try:
        return msgspec.toml.decode(text, type=form)
    except UnicodeDecodeError as error:
        why = f"it is not in UTF-8 ({error.reason} at byte {error.start})"
        raise ConfigError(f"{wrong}: {why}", **facts) from error
    except RecursionError as error:
        raise ConfigError(f"{wrong}: its values are nested too deeply", **facts) from error
    except (msgspec.MsgspecError, ValueError) as error:  # the latter: numbers of 5000 digits
        why = str(error).partition(";")[0]
        raise ConfigError(f"{wrong}: {why}", **facts) from error

"""Whole numbers that users give, checked: counts of things, and what numbers them."""

from __future__ import annotations

import operator
from typing import Any, Final

import torch

from smbox.errors import ConfigError

__all__ = ["MOST", "whole"]

MOST: Final = (1 << 63) - 1


def whole(name: str, value: Any, *, least: int = 1, most: int = MOST) -> int:
    """Return a number that is whole and within its limits, as an int.

    Args:
        name: of the argument, for the error.
        value: an int, or what is as good as one (numpy's, torch's integers); no bool, no float.
        least: the smallest.
        most: the largest.

    Raises:
        TypeError: it is no whole number.
        ConfigError: it is too small or too large.
    """
    is_bool = isinstance(value, bool) or getattr(value, "dtype", None) == torch.bool
    try:
        number = None if is_bool else operator.index(value)
    except TypeError:
        number = None
    if number is None:
        raise TypeError(f"{name} must be a whole number, not {type(value).__name__}")
    if number < least:
        raise ConfigError(f"{name} must be at least {least}", **{name: number})
    if number > most:
        shown = number if number <= MOST else f"{number.bit_length()} bits"
        raise ConfigError(f"{name} must be at most {most}", **{name: shown})
    return number

"""Repeated warnings of one or several ranks: shown once, then counted."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

TORCHS: Final = re.compile(r"\[W\d{4} [^\]]*\] (?P<text>.+)")
"""As PyTorch's: ``[W1123 07:41:11.123456 file.cpp:12] Warning: text``."""

PYTHONS: Final = re.compile(r"(?P<text>(?:\S.*:\d+: \w*Warning: |Warning: |WARNING[: ]).*)")
"""As Python's: ``file.py:3: UserWarning: text``, or ``WARNING:logger:text``."""

KINDS_MAX: Final = 1000
"""Warnings that are remembered; further ones are all shown."""


@dataclass
class Seen:
    """How often a warning came, and from whom."""

    count: int = 0
    ranks: set[int] = field(default_factory=set)


class RepeatedWarnings:
    """Finds the warnings that were shown already."""

    def __init__(self) -> None:
        self._seen: dict[str, Seen] = {}
        self._hushed: set[int] = set()

    def is_repeat(self, rank: int, line: str) -> bool:
        """Count a line; return whether it belongs to a warning already shown."""
        found = TORCHS.fullmatch(line) or PYTHONS.fullmatch(line)
        if found is None:
            # Python shows the line of code, indented, below its warning.
            is_code = rank in self._hushed and line.startswith("  ")
            self._hushed.discard(rank)
            return is_code
        text = found["text"]
        if text not in self._seen and len(self._seen) >= KINDS_MAX:
            return False
        seen = self._seen.setdefault(text, Seen())
        seen.count += 1
        seen.ranks.add(rank)
        is_repeat = seen.count > 1
        (self._hushed.add if is_repeat else self._hushed.discard)(rank)
        return is_repeat

    def summary(self) -> Iterator[str]:
        """Word how often each warning came that came more than once."""
        for text, seen in self._seen.items():
            if seen.count > 1:
                ranks = ", ".join(map(str, sorted(seen.ranks)))
                word = "rank" if len(seen.ranks) == 1 else "ranks"
                yield f"{seen.count} times, from {word} {ranks}: {text}"

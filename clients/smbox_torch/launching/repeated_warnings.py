"""Detection of repeated warnings of one or several ranks, which are shown once and counted."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

TORCHS: Final = re.compile(r"\[W\d{4} [^\]]*\] (?P<text>.+)")
"""A warning of PyTorch: ``[W1123 07:41:11.123456 file.cpp:12] Warning: text``."""

PYTHONS: Final = re.compile(r"(?P<text>(?:\S.*:\d+: \w*Warning: |Warning: |WARNING[: ]).*)")
"""A warning of Python: ``file.py:3: UserWarning: text``, or ``WARNING:logger:text``."""

TORCHS_END: Final = "(Triggered internally at "
"""In the last line of the text of a warning that PyTorch's C++ code raises in Python."""

KINDS_MAX: Final = 1000
"""Maximum number of stored warnings; once it is reached, new warnings are always shown."""


@dataclass
class Seen:
    """The count of a warning, and the ranks that printed it."""

    count: int = 0
    ranks: set[int] = field(default_factory=set)


class RepeatedWarnings:
    """Detects warnings that were shown before."""

    def __init__(self) -> None:
        self._seen: dict[str, Seen] = {}
        self._hushed: set[int] = set()

    def is_repeat(self, rank: int, line: str) -> bool:
        """Count a line; return whether it belongs to a warning that was shown before."""
        found = TORCHS.fullmatch(line) or PYTHONS.fullmatch(line)
        if found is None:
            # The text of PyTorch's warnings may end on another line. Python prints the line of
            # code, indented, below its warning.
            is_hushed = rank in self._hushed
            if TORCHS_END in line:
                return is_hushed
            self._hushed.discard(rank)
            return is_hushed and line.startswith("  ")
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
        """Yield a text with the count of each warning that was printed more than once."""
        for text, seen in self._seen.items():
            if seen.count > 1:
                ranks = ", ".join(map(str, sorted(seen.ranks)))
                word = "rank" if len(seen.ranks) == 1 else "ranks"
                yield f"{seen.count} times, from {word} {ranks}: {text}"

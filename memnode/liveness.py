"""Who has been silent for how long. Pure: time is an argument, in monotonic seconds."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)


class Liveness(Generic[Key]):
    """Remembers when each key was last seen and gives up those silent for too long.

    Args:
        expiry_s: silence after which a key is expired, in seconds.
    """

    def __init__(self, expiry_s: float) -> None:
        self.expiry_s = expiry_s
        self._seen: OrderedDict[Key, float] = OrderedDict()  # longest silent first

    def __len__(self) -> int:
        return len(self._seen)

    def __contains__(self, key: Key) -> bool:
        return key in self._seen

    def touch(self, key: Key, *, now_s: float) -> None:
        """Note that ``key`` was heard of at ``now_s``, which never goes back."""
        self._seen[key] = now_s
        self._seen.move_to_end(key)

    def forget(self, key: Key) -> None:
        """Drop ``key``; one that is not there is fine."""
        self._seen.pop(key, None)

    def expire(self, *, now_s: float) -> list[Key]:
        """Forget and return the keys silent for ``expiry_s``, longest silent first."""
        expired: list[Key] = []
        while self._seen:
            key, seen_s = next(iter(self._seen.items()))
            if now_s - seen_s < self.expiry_s:
                break
            del self._seen[key]
            expired.append(key)
        return expired

"""Regions that one process makes for a run: all or none, and freed when the run is over."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from smbox.errors import RegionFreedError, SmboxError

__all__ = ["RunRegions"]


class RunRegions:
    """Regions of a run and their end.

    Args:
        box: where they are made.
        name: of the run; a region is called ``name.word``.
    """

    def __init__(self, box: Any, name: str) -> None:
        self._box = box
        self._name = name
        self._regions: dict[str, Any] = {}

    def create(self, word: str, **settings: Any) -> Any:
        """Create a region.

        Args:
            word: its name within the run.
            settings: as ``Box.create`` takes them.

        Raises:
            RegionExistsError: the name is in use.
            OutOfMemoryError: there is no room.
        """
        made = self._box.create(f"{self._name}.{word}", **settings)
        self._regions[word] = made
        return made

    @contextmanager
    def free_on_error(self) -> Iterator[None]:
        """Free what was made if the body fails."""
        try:
            yield
        except BaseException:
            with suppress(SmboxError):  # the first error says more
                self.free()
            raise

    def free(self, *, but: str = "") -> None:
        """Free all regions, of which somebody else may have freed some. Idempotent.

        Args:
            but: one that stays.

        Raises:
            SmboxError: a node did not answer; call again to free the others.
        """
        for word in [word for word in self._regions if word != but]:
            with suppress(RegionFreedError):
                self._box.free(self._regions[word])
            del self._regions[word]

"""The regions of a run: one process creates all or none, and frees them after the run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from smbox.errors import RegionFreedError, SmboxError

__all__ = ["RunRegions"]


class RunRegions:
    """Creates and frees the regions of a run.

    Args:
        box: connection to the memory.
        name: name of the run; the name of a region is ``name.word``.
    """

    def __init__(self, box: Any, name: str) -> None:
        self._box = box
        self._name = name
        self._regions: dict[str, Any] = {}

    def create(self, word: str, **settings: Any) -> Any:
        """Create a region.

        Args:
            word: its name within the run.
            settings: arguments of ``Box.create``.

        Raises:
            RegionExistsError: the name is in use.
            OutOfMemoryError: memory is short.
        """
        made = self._box.create(f"{self._name}.{word}", **settings)
        self._regions[word] = made
        return made

    @contextmanager
    def free_on_error(self) -> Iterator[None]:
        """Free the created regions if the body fails."""
        try:
            yield
        except BaseException:
            with suppress(SmboxError):  # the first error says more
                self.free()
            raise

    def free(self, *, but: str = "") -> None:
        """Free all regions; another process may have freed some of them. Idempotent.

        Args:
            but: a region that is not freed.

        Raises:
            SmboxError: a node did not answer; call again to free the others.
        """
        for word, region in [*self._regions.items()]:
            if word != but:
                with suppress(RegionFreedError):
                    self._box.free(region)
                self._regions.pop(word, None)  # another thread may free them too

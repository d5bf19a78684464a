"""Log files of a run, one for each rank: ``rank0.log``, ``rank1.log``, ..."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TextIO

from smbox.errors import ConfigError


class Logs:
    """Open log files; files of an earlier run in the same folder are overwritten.

    Args:
        folder: their folder, created if needed.
        ranks: ranks whose output is written.

    Attributes:
        folder: their folder.

    Raises:
        ConfigError: a file cannot be written; no file is open.
    """

    def __init__(self, folder: Path, ranks: Iterable[int]) -> None:
        self.folder = folder
        self._files: dict[int, TextIO] = {}
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for rank in ranks:
                path = folder / f"rank{rank}.log"
                self._files[rank] = path.open("w", encoding="utf-8", buffering=1)
        except OSError as error:
            self.close()
            raise ConfigError(
                f"the logs cannot be written ({error.strerror}): give --log-dir a folder that"
                " you may write to",
                log_dir=str(folder),
            ) from error

    def write(self, rank: int, lines: Sequence[str]) -> None:
        """Write lines of a rank; they are in the file when this returns.

        Raises:
            OSError: they cannot be written, for example because the disk is full.
        """
        self._files[rank].write("\n".join(lines) + "\n")

    def close(self) -> None:
        """Close all files."""
        for file in self._files.values():
            with contextlib.suppress(OSError):  # lines that ``write`` could not write
                file.close()
        self._files.clear()

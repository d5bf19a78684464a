"""The address and key of a run, for launchers that pass arguments instead of files."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from smbox.keys import SECRET_MODE, Authorised, Role, add_client, make_node_key

CLIENT: Final = "run"
"""The one client of a run's keys: its launcher and all its workers."""


@dataclass(frozen=True, slots=True)
class Access:
    """What a process needs to connect to the memory nodes of a run.

    Args:
        address: address of all nodes.
        key: text of the client's key file; a secret.
    """

    address: str
    key: str = field(repr=False)

    @contextmanager
    def entered(self, **variables: object) -> Iterator[None]:
        """Set SMBOX_ADDRESS, SMBOX_KEY and more variables in this process during the block.

        ``smbox.connect()`` belongs inside the block. The key is in anonymous memory, not in a
        file system, so nothing is left if the process is killed.

        Args:
            **variables: more variables, without the prefix SMBOX_, for example ``RANK=0``.
        """
        file = os.memfd_create("smbox.key")
        before = {name: text for name, text in os.environ.items() if name.startswith("SMBOX_")}
        try:
            os.fchmod(file, SECRET_MODE)
            os.write(file, self.key.encode())
            variables |= {"ADDRESS": self.address, "KEY": f"/proc/{os.getpid()}/fd/{file}"}
            os.environ.update(
                {f"SMBOX_{name}": str(value) for name, value in variables.items()}
            )
            yield
        finally:
            os.close(file)
            for name in variables:
                os.environ.pop(f"SMBOX_{name}", None)
            os.environ.update(before)

    def call(
        self, function: Callable[..., Any], args: Sequence[Any], variables: Mapping[str, object]
    ) -> Any:
        """Call a function inside ``entered`` and return its result."""
        with self.entered(**variables):
            return function(*args)


def made_keys() -> tuple[dict[str, str], str]:
    """Make the keys of one run: a key folder for the nodes, with one client of role ADMIN.

    Returns:
        The text of each file of the folder, by its path in the folder, and the client's key.
    """
    with tempfile.TemporaryDirectory(prefix="smbox-keys-") as name:
        folder = Path(name)
        make_node_key(folder)
        key = add_client(folder, Authorised(CLIENT, Role.ADMIN)).read_text()
        files = folder.rglob("*.toml")
        return {str(file.relative_to(folder)): file.read_text() for file in files}, key


def write_keys(files: Mapping[str, str], folder: Path) -> None:
    """Write the files that ``made_keys`` returned into a folder, for ``memnode --keys``."""
    for name, text in files.items():
        file = folder / name
        file.parent.mkdir(exist_ok=True)
        file.touch(SECRET_MODE)
        file.write_text(text)

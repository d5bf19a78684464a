"""The contract of every Box, on every path: a suite of plain functions, ``check_*(box)``.

Run each of ``CHECKS`` on a box. A check creates regions with random names and frees them. It
needs no test framework, so that other implementations can run it too.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any, Final

from smbox.testing import (
    contract_atomic,
    contract_names,
    contract_pgas,
    contract_rows,
    contract_vectors,
    contract_verbs,
    contract_waits,
)

Check = Callable[[Any], None]


def checks_of(module: ModuleType) -> tuple[Check, ...]:
    """Return the check functions of a module, in the order of their names."""
    found = sorted(name for name in vars(module) if name.startswith("check_"))
    return tuple(getattr(module, name) for name in found)


CHECKS: Final[tuple[Check, ...]] = tuple(
    check
    for module in (
        contract_verbs,
        contract_rows,
        contract_vectors,
        contract_atomic,
        contract_names,
        contract_waits,
        contract_pgas,
    )
    for check in checks_of(module)
)

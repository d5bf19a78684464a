"""Parameters of a model that no wrapped optimizer has: frozen ones, or a part left out.

They are not exchanged, so they must be equal on all workers. Otherwise the workers train the
shared part of different models.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterable
from typing import Final

import torch

from smbox_torch.model.digest import digest
from smbox_torch.model.flat import unique

__all__ = ["forget_wrapped", "note_wrapped", "other_parameters", "others_digest"]

_wrapped: Final[weakref.WeakKeyDictionary[object, frozenset[int]]] = weakref.WeakKeyDictionary()
"""Ids of the parameters of each open wrapper in this process, which keeps them alive."""

_lock: Final = threading.Lock()


def note_wrapped(wrapper: object, parameters: Iterable[torch.Tensor]) -> None:
    """Note the parameters of a wrapper; they are no wrapper's others until it is closed."""
    with _lock:
        _wrapped[wrapper] = frozenset(map(id, parameters))


def forget_wrapped(wrapper: object) -> None:
    """Forget the parameters of a wrapper that was closed."""
    with _lock:
        _wrapped.pop(wrapper, None)


def other_parameters(model: torch.nn.Module | None) -> list[torch.Tensor]:
    """Return the parameters of a model that no open wrapper of this process has.

    Parameters without values (on the meta device, or of lazy modules) are left out.
    """
    with _lock:
        held = frozenset[int]().union(*_wrapped.values())
    found = [] if model is None else unique(model.parameters())
    return [each for each in found if id(each) not in held and _has_values(each)]


def others_digest(model: torch.nn.Module | None) -> str:
    """Return a checksum of these parameters; one pass over them."""
    return f"{digest(other_parameters(model)):08x}"


def _has_values(tensor: torch.Tensor) -> bool:
    is_lazy = torch.nn.parameter.is_lazy(tensor)
    return not is_lazy and not tensor.is_meta and tensor.layout == torch.strided

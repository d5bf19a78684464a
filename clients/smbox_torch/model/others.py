"""Parameters of a model that no wrapped optimizer has: frozen ones, or a part left out.

They are not exchanged, so they must be equal on all workers. Otherwise the workers train the
shared part of different models.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Final

import numpy as np
import torch

from smbox.errors import ConfigError
from smbox_torch.boxes import BoxLike
from smbox_torch.model.digest import digest
from smbox_torch.model.flat import unique

__all__ = ["check_others", "forget_wrapped", "note_wrapped", "other_parameters"]

_wrapped: Final[dict[int, frozenset[int]]] = {}
"""Ids of the parameters of each open wrapper, which keeps them alive, by the wrapper's id.

No lock protects it: a signal handler that closes a wrapper would wait for it for ever. Each
access is one call in C.
"""


def note_wrapped(wrapper: object, parameters: Iterable[torch.Tensor]) -> None:
    """Note the parameters of a wrapper; they are no wrapper's others until it is closed."""
    _wrapped[id(wrapper)] = frozenset(map(id, parameters))
    weakref.finalize(wrapper, _wrapped.pop, id(wrapper), None).atexit = False


def forget_wrapped(wrapper: object) -> None:
    """Forget the parameters of a wrapper that was closed. Idempotent."""
    _wrapped.pop(id(wrapper), None)


def other_parameters(
    model: torch.nn.Module | None, own: Iterable[torch.Tensor]
) -> list[torch.Tensor]:
    """Return the parameters of a model that no open wrapper of this process has.

    Those without plain values are left out: on the meta device, of lazy modules, of tensor
    subclasses, not strided.

    Args:
        model: the model; None has none.
        own: parameters of the caller's optimizer, which may be closed.
    """
    if model is None:
        return []
    held = frozenset(map(id, own)).union(*_wrapped.values())
    return [p for p in unique(model.parameters()) if id(p) not in held and _has_values(p)]


def check_others(
    box: BoxLike, name: str, model: torch.nn.Module | None, own: Iterable[torch.Tensor]
) -> None:
    """Compare a checksum of these parameters with that of the first worker; one pass over them.

    The region ``NAME.others`` holds it. It is read at the first step: by then a script has
    wrapped all its optimizers.

    Raises:
        ConfigError: they differ; nothing was changed.
    """
    others = other_parameters(model, own)
    if not others:
        return
    mine = np.array([digest(others)], np.int64)
    first = box.create(f"{name}.others", shape=1, dtype="int64", init=mine, exist_ok=True)
    if first.get()[0] != mine[0]:
        raise ConfigError(
            "the parameters of model= that no wrapped optimizer has differ from those of the"
            " first worker, and they are not exchanged: seed all workers equally, or load the"
            " same weights before wrapping, or give them to the optimizer",
            name=name,
            parameters=len(others),
        )


def _has_values(tensor: torch.Tensor) -> bool:
    is_plain = type(tensor) in {torch.Tensor, torch.nn.Parameter}
    return is_plain and not tensor.is_meta and tensor.layout == torch.strided

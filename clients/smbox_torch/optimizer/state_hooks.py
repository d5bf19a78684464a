"""Hooks around ``state_dict`` and ``load_state_dict``, called as ``torch.optim`` calls them."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

import torch

from smbox.errors import ConfigError
from smbox_torch.model.strides import match_gradients, match_state

__all__ = ["HookedOptimizer"]


class HookedOptimizer(torch.optim.Optimizer):
    """An optimizer that adds torch's hooks to ``state_dict`` and ``load_state_dict``.

    Frameworks cannot imitate it, and it cannot be copied.

    A call by a user runs the hooks once; a call of the base method by an overriding method runs
    none. If a hook returns a state, it replaces the state that was passed to the hook.
    """

    _is_inside = False

    _is_matched = False
    """Whether the state of the inner optimizer has its parameters' strides; see ``strides``."""

    def __init_subclass__(cls) -> None:
        """Wrap the methods that a subclass defines, so that no subclass can omit the hooks."""
        super().__init_subclass__()
        if cls.__bases__[0].__name__ == "_FabricOptimizer":
            # Its methods would read the wrapper's attributes, but set those of another object.
            raise ConfigError(
                "Fabric would imitate the wrapper, and lose its state: wrap the optimizer"
                " that fabric.setup returns"
            )
        own = vars(cls)
        if "state_dict" in own:
            cls.state_dict = _saving(own["state_dict"])  # type: ignore[method-assign]
        if "load_state_dict" in own:
            cls.load_state_dict = _loading(own["load_state_dict"])  # type: ignore[method-assign]

    def __getstate__(self) -> dict[str, Any]:
        """Reject copy and pickle: the rank of a worker cannot be duplicated."""
        raise ConfigError(
            "a wrapped optimizer is neither copied nor pickled: save its state_dict(), and "
            "load it into an optimizer that is wrapped there",
            optimizer=type(self).__name__,
        )

    def _follow_loads(self, inner: torch.optim.Optimizer) -> None:
        """Call ``_inner_loaded`` whenever an inner optimizer has loaded a state itself."""
        own = weakref.ref(self)

        def loaded(_inner: torch.optim.Optimizer) -> None:
            wrapper = own()
            if wrapper is not None:
                wrapper._inner_loaded()  # noqa: SLF001 - its own method

        hook = inner.register_load_state_dict_post_hook(loaded)
        weakref.finalize(self, hook.remove).atexit = False

    def _inner_loaded(self) -> None:
        """Follow a state that the inner optimizer has loaded."""
        self._is_matched = False

    def _match(self, inner: torch.optim.Optimizer) -> None:
        """Match strides before a step; of the state in the first one and after a load."""
        if not self._is_matched:
            match_state(inner)
            self._is_matched = True
        match_gradients(inner)

    @contextmanager
    def _inside(self) -> Iterator[None]:
        self._is_inside = True
        try:
            yield
        finally:
            self._is_inside = False


def _saving(method: Callable[..., dict[str, Any]]) -> Callable[..., dict[str, Any]]:
    @wraps(method)
    def state_dict(self: HookedOptimizer) -> dict[str, Any]:
        if self._is_inside:
            return method(self)
        for before in [*self._optimizer_state_dict_pre_hooks.values()]:
            before(self)
        with self._inside():
            state = method(self)
        for after in [*self._optimizer_state_dict_post_hooks.values()]:
            changed = after(self, state)
            state = state if changed is None else changed
        return state

    return state_dict


def _loading(method: Callable[..., None]) -> Callable[..., None]:
    @wraps(method)
    def load_state_dict(self: HookedOptimizer, state_dict: dict[str, Any], **more: Any) -> None:
        if self._is_inside:
            method(self, state_dict, **more)
            return
        state = dict(state_dict)  # hooks may change it, as torch's
        for before in [*self._optimizer_load_state_dict_pre_hooks.values()]:
            changed = before(self, state)
            state = state if changed is None else changed
        with self._inside():
            method(self, state, **more)
        for after in [*self._optimizer_load_state_dict_post_hooks.values()]:
            after(self)

    return load_state_dict

"""Whether the compiled kernels are there, and the door through which commits reach them."""

from __future__ import annotations

from smbox.memory.kernels import journaled

__all__ = ["journaled"]
